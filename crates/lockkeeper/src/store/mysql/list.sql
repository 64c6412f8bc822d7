-- The tickets of the lines whose names fit {which}, each with what is left of its time: the first of each line from its
-- gate, and those behind it. The parameters of {which}, twice. One round trip.
SELECT t.name, t.id, t.seq, t.weight, t.capacity, t.fence, t.note,
  s.host, s.pid, s.program, n.now - t.entered AS entered_ago, n.now - t.granted AS granted_ago,
  CASE WHEN t.session IS NULL THEN t.hold_until WHEN t.fence = 0 THEN COALESCE(s.expires, 0)
    ELSE COALESCE(s.dead_at, 0) END - n.now AS ends_in FROM (
  SELECT name, id, session, 0 AS seq, weight, capacity, fence, fence AS entered,
    fence AS granted, hold_until, note FROM lk_gate WHERE fence > 0 AND {which} UNION ALL
  SELECT name, id, session, seq, weight, capacity, fence, entered, granted, hold_until, note
    FROM lk_ticket WHERE {which}) t LEFT JOIN lk_session s ON s.id = t.session
  JOIN (SELECT {now} AS now) n
  ORDER BY t.name, t.seq
