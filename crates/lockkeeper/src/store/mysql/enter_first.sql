-- Takes a free lock: ticket, session, weight, capacity, label; name, the server's time by which it must be taken. One
-- round trip. All that decides is in the gate's row. The fence comes back as the id of the last insert; without one
-- the row was not as it should be.
UPDATE lk_gate SET last = LAST_INSERT_ID(GREATEST(last + 1, {now})),
  fence = last, id = ?, session = ?, weight = ?, capacity = ?, note = ?, note_edit = 0,
  cell_edit = 0 WHERE name = ? AND fence = 0 AND crowd = 0 AND {now} < ?
