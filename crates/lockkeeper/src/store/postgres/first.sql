-- Enters a line in which nobody stands: $1 name, $2 ticket, $3 session, $4 weight, $5 capacity, $6 queue,
-- $7 note, $8 until, as lk_enter has them. No row: others are there, or it came too late.
--
-- All that decides about a free line stands in its row, because what a statement reads elsewhere is as
-- old as the statement, however long it waits for the row: nobody there, nobody behind, and no ticket
-- closed lately. The number is drawn behind the name's key, so it is greater than that of every user's
-- transaction before; once, because a second look at the clock would give another.
UPDATE lockkeeper.lk_line AS l
   SET fence = greatest(l.last + 1, l.fence + 1, lockkeeper.lk_micros(clock_timestamp())),
       capacity = $5, id = $2, session = $3, weight = $4, entered = clock_timestamp(),
       note = $7, note_edit = 0, cell_edit = 0
 WHERE l.name = $1 AND l.id IS NULL AND l.others = 0 AND l.closing < clock_timestamp()
   AND lockkeeper.lk_micros(clock_timestamp()) <= $8
   AND ($6 OR lockkeeper.lk_hurry())
   AND pg_try_advisory_xact_lock_shared(lockkeeper.lk_name_key($1))
RETURNING l.fence AS o_fence
