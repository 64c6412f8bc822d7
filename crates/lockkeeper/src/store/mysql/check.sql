-- Is a grant held, in the gate or behind it? name twice, ticket twice, fence, weight, capacity. One round trip.
SELECT COUNT(*) AS held FROM (
  SELECT id, session, fence, weight, capacity FROM lk_gate WHERE name = ? AND fence > 0
  UNION ALL SELECT id, session, fence, weight, capacity FROM lk_ticket
    WHERE name = ? AND id = ? AND fence > 0) t JOIN lk_session s ON s.id = t.session
  WHERE t.id = ? AND t.fence = ? AND t.weight = ? AND t.capacity = ? AND s.dead_at > {now}
