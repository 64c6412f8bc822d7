-- Releases a lock without waiters: name, ticket, session. One round trip. A row that is found is changed, so it does not
-- matter how the server counts rows. The session is taken out of its index: otherwise every renewal would walk over all
-- names that it has ever locked.
UPDATE lk_gate SET fence = 0, session = ''
  WHERE name = ? AND id = ? AND session = ? AND fence > 0 AND crowd = 0
