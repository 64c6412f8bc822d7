-- Renews a session, buries a few dead ones, and sweeps lines that are named. One round trip, however many
-- tickets the session has.
-- KEYS e s i o x [z t]…   ARGV session ttl delay idle [name]…
-- -> -1 if the session is over; else { evictions, names of lines to be swept the next time, now, and in
-- the session's home the notes on the other buckets in which it is open }
local E, S, I, O, X = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local sid, ttl, delay, idle = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local now = clock()
-- A server that is full lets a script write on that has written already, and this needs no memory.
redis.call('ZREM', E, '')
mark(E, S, now)
local dead = redis.call('ZSCORE', E, sid)
if not dead or tonumber(dead) - delay <= now then return -1 end
redis.call('ZADD', E, num(now + ttl + delay), sid)
bury(E, S, O, now)
for n = 1, (#KEYS - 5) / 2 do
  sweep(E, S, I, O, X, KEYS[4 + 2 * n], KEYS[5 + 2 * n], ARGV[4 + n], now, idle)
end
local evictions = about(S, sid)
local joined = redis.call('ZRANGE', O, '[' .. sid .. ' @', '(' .. sid .. ' A', 'BYLEX')
return { evictions, dusty(I, X, now, idle), now, joined }
