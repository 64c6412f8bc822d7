-- Ends a session, takes its tickets out of the named lines, and sweeps what dead sessions have left. One round trip for
-- a bucket.
-- KEYS e s n o x [z t]…   ARGV session stray-for [name ticket session]…, another session or - to sweep
-- -> 1
local E, S, N, O, X = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local sid, now = ARGV[1], clock()
over(E, S, O, sid)
redis.call('ZADD', E, num(now + tonumber(ARGV[2])), '!' .. sid)
for n = 1, (#KEYS - 5) / 2 do
  local Z, T = KEYS[4 + 2 * n], KEYS[5 + 2 * n]
  local name, id, whose = ARGV[3 * n], ARGV[3 * n + 1], ARGV[3 * n + 2]
  if whose == sid then
    local k = read(T, id)
    if k and k.sid == sid then drop(S, O, Z, T, name, id, k) end
    settle(E, S, N, O, Z, T, name, now)
  else
    sweep(E, S, N, O, X, Z, T, name, id, whose, now)
  end
end
-- Now that its tickets are gone.
over(E, S, O, sid)
return 1
