-- Renews a session, ends a few dead ones, and sweeps the named entries. One round trip, however many tickets the
-- session has.
-- KEYS e s n o x [z t]…   ARGV session ttl delay [name ticket session]…
-- -> -1 if the session is over; else { evictions, what is to be swept the next time, now, in the session's
-- home the notes on the other buckets in which it is open, history, number of tickets, their sum }
local E, S, N, O, X = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local sid, ttl, delay = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = clock()
-- A full server lets a script that has written write on, and this write needs no memory.
redis.call('ZREM', E, '')
mark(E, S, now)
local dead = redis.call('ZSCORE', E, sid)
if not dead or tonumber(dead) - delay <= now then return -1 end
redis.call('ZADD', E, num(now + ttl + delay), sid)
for n = 1, (#KEYS - 5) / 2 do
  local name, id, whose = ARGV[1 + 3 * n], ARGV[2 + 3 * n], ARGV[3 + 3 * n]
  sweep(E, S, N, O, X, KEYS[4 + 2 * n], KEYS[5 + 2 * n], name, id, whose, now)
end
local dust, evictions = bury(E, S, O, X, now), about(S, sid)
local from, to = notes(sid)
local joined = redis.call('ZRANGE', O, from, to, 'BYLEX')
local count = redis.call('ZLEXCOUNT', O, mine(sid)) - #joined
return { evictions, dust, now, joined, history(), count, sum(S, O, sid) }
