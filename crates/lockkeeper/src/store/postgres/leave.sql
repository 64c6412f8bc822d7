-- Releases a ticket that is alone in its line: $1 name, $2 ticket, $3 session. One round trip: NULL
-- if it was so, else what lk_leave says, which also refuses while a checked fence needs the ticket.
WITH fast AS (
  UPDATE lockkeeper.lk_line SET id = NULL, session = NULL
   WHERE name = $1 AND id = $2 AND session = $3 AND others = 0
     AND pg_try_advisory_xact_lock(lockkeeper.lk_ticket_key($2))
  RETURNING true AS alone
)
SELECT CASE WHEN (SELECT alone FROM fast) IS NULL
            THEN lockkeeper.lk_leave($1, $2, $3, 0, 0) END AS o_else
