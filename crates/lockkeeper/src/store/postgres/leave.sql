-- Releases a ticket that is first in its line and stands in the line's own row: $1 name, $2 ticket,
-- $3 session. One round trip: NULL if nobody is behind it, else what lk_pass_on says. No row: it does not
-- stand there any more, or a checked fence needs it; lk_leave tells. The number is kept in last too: a call
-- of the first layout's functions that is still under way looks at nothing else.
UPDATE lockkeeper.lk_line SET id = NULL, session = NULL, last = greatest(last, fence)
 WHERE name = $1 AND id = $2 AND session = $3
   AND pg_try_advisory_xact_lock(lockkeeper.lk_ticket_key($2))
RETURNING CASE WHEN others > 0 THEN lockkeeper.lk_pass_on($1) END AS o_else
