-- Renews a ticket that this node still holds; never shortens it. One round trip.
-- KEYS the name's hash, the index   ARGV ticket session for(µs) keep(µs) name   -> 1 held, 0 not
local L = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function num(n) return string.format('%.0f', n) end
local v = redis.call('HMGET', L, 'k', 's', 'u')
local till = tonumber(v[3] or 0)
if v[1] ~= ARGV[1] or v[2] ~= ARGV[2] or till <= now then return 0 end
till = math.max(till, now + tonumber(ARGV[3]))
redis.call('HSET', L, 'u', num(till))
redis.call('PEXPIRE', L, num((till - now + tonumber(ARGV[4])) / 1000))
redis.call('ZADD', KEYS[2], num(till), ARGV[5])
return 1
