-- The rights that the user lacks in the schema $1, each with the statement that grants it. One round trip.
SELECT p.privilege || ' ' || c.relname AS privilege,
       format('GRANT %s ON %I.%I TO %I', p.privilege, n.nspname, c.relname, current_user) AS remedy
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
       unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p(privilege)
 WHERE n.nspname = $1 AND c.relname LIKE 'lk\_%'
   AND (c.relkind = 'r' OR c.relkind = 'v' AND p.privilege = 'SELECT')
   AND NOT has_table_privilege(c.oid, p.privilege)
UNION ALL
SELECT 'use the schema', format('GRANT USAGE ON SCHEMA %I TO %I', $1, current_user)
  FROM pg_namespace WHERE nspname = $1 AND NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT 'EXECUTE ' || p.proname,
       format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, current_user)
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = $1 AND p.proname LIKE 'lk\_%' AND NOT has_function_privilege(p.oid, 'EXECUTE')
