-- What the store wants to know about a server, by name. One round trip.
SELECT name, value FROM (VALUES
  ('version', current_setting('server_version_num')),
  ('encoding', current_setting('server_encoding')),
  ('isolation', current_setting('default_transaction_isolation')),
  ('synchronous_commit', current_setting('synchronous_commit')),
  ('fsync', current_setting('fsync')),
  ('full_page_writes', current_setting('full_page_writes')),
  ('is_replica', CASE WHEN pg_is_in_recovery() THEN 'on' ELSE 'off' END),
  ('replicas', (SELECT count(*)::text FROM pg_stat_replication)),
  ('synchronous_replicas', current_setting('synchronous_standby_names')),
  ('oldest_snapshot', (SELECT coalesce(max(age(backend_xmin)), 0)::text
     FROM pg_stat_activity WHERE pid <> pg_backend_pid())),
  ('now', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text)
) AS facts(name, value)
