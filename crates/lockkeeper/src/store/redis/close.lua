-- Ends a session and takes its tickets out of the lines that are named. One round trip for a bucket.
-- KEYS e s i o [z t]…   ARGV session stray-for [name ticket]…   -> 1
local E, S, I, O = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sid, now = ARGV[1], clock()
over(E, S, O, sid)
redis.call('ZADD', E, num(now + tonumber(ARGV[2])), '!' .. sid)
for n = 1, (#KEYS - 4) / 2 do
  local Z, T = KEYS[3 + 2 * n], KEYS[4 + 2 * n]
  local name, id = ARGV[1 + 2 * n], ARGV[2 + 2 * n]
  local k = read(T, id)
  if k and k.sid == sid then drop(O, Z, T, name, id, k) end
  settle(E, S, I, O, Z, T, name, now)
end
return 1
