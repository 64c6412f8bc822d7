-- Opens a session; opening it again changes nothing. One round trip.
-- KEYS e s   ARGV session ttl delay channel owner   -> now, or -1 if it has been closed
local E, S = KEYS[1], KEYS[2]
local sid, ttl, delay, channel, owner = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local now = clock()
mark(E, S, now)
if not redis.call('ZSCORE', E, sid) then
  if redis.call('ZSCORE', E, '!' .. sid) then return -1 end
  redis.call('ZADD', E, num(now + ttl + delay), sid)
  redis.call('HSET', S, sid, table.concat({ '0', num(ttl), num(delay), channel, owner }, ' '))
end
return now
