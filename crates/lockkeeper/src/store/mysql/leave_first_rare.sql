-- The same for any other name: takes the session out of its index, see hot_names.rs.
UPDATE lk_gate SET fence = 0, session = ''
  WHERE name = ? AND id = ? AND session = ? AND fence > 0 AND crowd = 0
