-- Releases a ticket that is alone in its line: $1 name, $2 ticket, $3 session. One round trip: o_alone
-- if it was so, else what lk_leave says, which also refuses while a checked fence needs the ticket.
WITH fast AS (
  UPDATE lockkeeper.lk_line SET id = NULL, session = NULL, hold_until = NULL
   WHERE name = $1 AND id = $2 AND session = $3 AND others = 0
     AND pg_try_advisory_xact_lock(lockkeeper.lk_ticket_key($2))
  RETURNING 1
)
SELECT EXISTS (SELECT FROM fast) AS o_alone,
       CASE WHEN NOT EXISTS (SELECT FROM fast)
            THEN lockkeeper.lk_leave($1, $2, $3, 0, 0) END AS o_else
