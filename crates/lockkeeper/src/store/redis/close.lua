-- Ends a session, takes its tickets out of the lines that are named, and sweeps others. One round trip
-- for a bucket.
-- KEYS e s i o x [z t]…   ARGV session stray-for idle [name ticket]…, ticket - for a line to sweep   -> 1
local E, S, I, O, X = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local sid, idle, now = ARGV[1], tonumber(ARGV[3]), clock()
over(E, S, O, sid)
redis.call('ZADD', E, num(now + tonumber(ARGV[2])), '!' .. sid)
for n = 1, (#KEYS - 5) / 2 do
  local Z, T = KEYS[4 + 2 * n], KEYS[5 + 2 * n]
  local name, id = ARGV[2 + 2 * n], ARGV[3 + 2 * n]
  local k = read(T, id)
  if k and k.sid == sid then drop(O, Z, T, name, id, k) end
  if id == '-' then
    sweep(E, S, I, O, X, Z, T, name, now, idle)
  else
    settle(E, S, I, O, Z, T, name, now)
  end
end
return 1
