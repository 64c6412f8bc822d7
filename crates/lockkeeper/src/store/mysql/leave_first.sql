-- Releases a lock without waiters, of a name that this process releases often: name, ticket, session. One round trip.
-- A row that is found is changed, so it does not matter how the server counts rows.
UPDATE lk_gate SET fence = 0
  WHERE name = ? AND id = ? AND session = ? AND fence > 0 AND crowd = 0
