-- Opens a session and buries a few dead ones; opening it again changes nothing. One round trip.
-- KEYS e s i o x   ARGV session ttl delay idle channel owner
-- -> -1 if it has been closed; else { now, names of lines to be swept the next time }
local E, S, I, O, X = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local sid, ttl, delay, idle = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = clock()
mark(E, S, now)
if not redis.call('ZSCORE', E, sid) then
  if redis.call('ZSCORE', E, '!' .. sid) then return -1 end
  redis.call('ZADD', E, num(now + ttl + delay), sid)
  redis.call('HSET', S, sid, table.concat({ '0', num(ttl), num(delay), ARGV[5], ARGV[6] }, ' '))
end
bury(E, S, O, now)
return { now, dusty(I, X, now, idle) }
