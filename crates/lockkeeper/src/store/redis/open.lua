-- Opens a session and ends a few dead ones; opening it again changes nothing. One round trip.
-- KEYS e s n o x   ARGV session ttl delay channel owner
-- -> -1 if it is over; else { now, what is to be swept the next time, history }
local E, S, O, X = KEYS[1], KEYS[2], KEYS[4], KEYS[5]
local sid, ttl, delay = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = clock()
mark(E, S, now)
local ends = redis.call('ZSCORE', E, sid)
if ends == '0' then return -1 end
if not ends then
  if redis.call('ZSCORE', E, '!' .. sid) then return -1 end
  redis.call('ZADD', E, num(now + ttl + delay), sid)
  local about = table.concat({ '0', num(ttl), num(delay), ARGV[4], ARGV[5] }, ' ')
  redis.call('HSET', S, sid, about, '#' .. sid, 0)
end
return { now, bury(E, S, O, X, now), history() }
