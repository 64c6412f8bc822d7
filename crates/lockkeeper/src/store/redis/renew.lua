-- Renews a session and clears away a few dead ones. One round trip, however many tickets it has.
-- KEYS e s i x   ARGV session ttl delay idle
-- -> -1 if the session is over; else { evictions, names that the client should have swept, now }
local E, S, I, X = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sid, ttl, delay, idle = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = clock()
-- A server that is full lets a script write on that has written already, and this needs no memory.
redis.call('ZREM', E, '')
mark(E, S, now)
local dead = redis.call('ZSCORE', E, sid)
if not dead or tonumber(dead) - delay <= now then return -1 end
redis.call('ZADD', E, num(now + ttl + delay), sid)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', E, '-inf', num(now), 'LIMIT', 0, 4)) do
  redis.call('ZREM', E, gone)
  redis.call('HDEL', S, gone)
end
local sweep = redis.call('ZRANGEBYSCORE', X, '-inf', num(now), 'LIMIT', 0, 4)
for _, name in ipairs(redis.call('ZRANGEBYSCORE', I, '-inf', num(now - idle), 'LIMIT', 0, 4)) do
  sweep[#sweep + 1] = name
end
return { about(S, sid), sweep, now }
