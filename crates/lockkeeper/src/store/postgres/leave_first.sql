-- Releases a ticket that stands in the line's own row: $1 name, $2 ticket, $3 session. One round trip: NULL if no
-- ticket is behind it, else the answer of lk_pass_on. No row: the ticket is not there any more, or a transaction has
-- checked its fence; lk_leave tells which. The number is also kept in `last`: a call of the first layout's functions
-- that is still under way looks at nothing else.
UPDATE lockkeeper.lk_line SET id = NULL, session = NULL, last = greatest(last, fence)
 WHERE name = $1 AND id = $2 AND session = $3
   AND pg_try_advisory_xact_lock(lockkeeper.lk_ticket_key($2))
RETURNING CASE WHEN others > 0 THEN lockkeeper.lk_pass_on($1) END AS o_else
