-- Enters a line: $1 name, $2 ticket, $3 session, $4 weight, $5 capacity, $6 queue, $7 note, $8 until,
-- $9 most, as lk_enter has them. One round trip: o_fence if the line was free, else what lk_enter says.
--
-- All that decides about a free line stands in its row, because what a statement reads elsewhere is as
-- old as the statement, however long it waits for the row: nobody there, nobody behind, and no ticket
-- closed lately. The session is read before the wait and its end compared again behind it; one that
-- was ended meanwhile leaves a ticket that is dead, as one that ends a moment later does. The number
-- is drawn under the name's key, so it is greater than that of every user's transaction before.
WITH fast AS (
  UPDATE lockkeeper.lk_line AS l
     SET last = greatest(l.last + 1, s.number), fence = greatest(l.last + 1, s.number),
         capacity = $5, id = $2, session = $3, weight = $4, entered = clock_timestamp(),
         hold_until = NULL, note = $7, note_edit = 0, cell_edit = 0
    FROM (SELECT expires, lockkeeper.lk_micros(clock_timestamp()) AS number
            FROM lockkeeper.lk_session
           WHERE id = $3 AND expires > clock_timestamp()
             AND ($6 OR lockkeeper.lk_hurry())
             AND pg_try_advisory_xact_lock_shared(lockkeeper.lk_name_key($1))) AS s
   WHERE l.name = $1 AND l.id IS NULL AND l.others = 0 AND l.closing < clock_timestamp()
     AND s.number <= $8
  RETURNING l.last, s.expires > clock_timestamp() AS alive
)
SELECT (SELECT last FROM fast WHERE alive) AS o_fence,
       CASE WHEN NOT EXISTS (SELECT FROM fast WHERE alive)
            THEN lockkeeper.lk_enter($1, $2, $3, $4, $5, $6, $7, $8, $9) END AS o_else
