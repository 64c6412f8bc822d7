-- Takes a free lock: $1 name, $2 ticket, $3 session, $4 weight, $5 capacity, $6 queue, $7 label, $8 until, as
-- lk_enter has them. One round trip: o_fence. No row: other tickets are in the line, or the request came too late.
--
-- All that decides about a free line is in its own row: no first ticket, none behind it, and no ticket that was
-- closed lately. What the statement would read elsewhere is as old as the statement, however long it waits for
-- the row. The fence is drawn under the name's advisory lock, so it is greater than that of every earlier lk_lock. It
-- is drawn once, because a second look at the clock would give another number.
UPDATE lockkeeper.lk_line AS l
   SET fence = greatest(l.last + 1, l.fence + 1, lockkeeper.lk_micros(clock_timestamp())),
       capacity = $5, id = $2, session = $3, weight = $4, entered = clock_timestamp(),
       note = $7, note_edit = 0, cell_edit = 0
 WHERE l.name = $1 AND l.id IS NULL AND l.others = 0 AND l.closing < clock_timestamp()
   AND lockkeeper.lk_micros(clock_timestamp()) <= $8
   AND ($6 OR lockkeeper.lk_hurry())
   AND pg_try_advisory_xact_lock_shared(lockkeeper.lk_name_key($1))
RETURNING l.fence AS o_fence
