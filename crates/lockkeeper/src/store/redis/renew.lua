-- Renews a session and clears away a few dead ones. One round trip, however many tickets it has.
-- KEYS e s i o x   ARGV session ttl delay idle
-- -> -1 if the session is over; else { evictions, names that the client should have swept, now, and in the
-- session's home the notes on the other buckets in which it is open }
local E, S, I, O, X = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local sid, ttl, delay, idle = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = clock()
-- A server that is full lets a script write on that has written already, and this needs no memory.
redis.call('ZREM', E, '')
mark(E, S, now)
local dead = redis.call('ZSCORE', E, sid)
if not dead or tonumber(dead) - delay <= now then return -1 end
redis.call('ZADD', E, num(now + ttl + delay), sid)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', E, '-inf', num(now), 'LIMIT', 0, 4)) do
  over(E, S, O, gone)
end
local sweep = redis.call('ZRANGEBYSCORE', X, '-inf', num(now), 'LIMIT', 0, 4)
for _, name in ipairs(redis.call('ZRANGEBYSCORE', I, '-inf', num(now - idle), 'LIMIT', 0, 4)) do
  sweep[#sweep + 1] = name
end
local evictions = about(S, sid)
local joined = redis.call('ZRANGE', O, '[' .. sid .. ' @', '(' .. sid .. ' A', 'BYLEX')
return { evictions, sweep, now, joined }
