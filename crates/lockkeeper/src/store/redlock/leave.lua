-- Takes a session's own ticket away, and notes it as closed if a duplicate of its enter may still come. The counter
-- stays. One round trip.
-- KEYS the name's hash, the index, the name's closed tickets
-- ARGV ticket session stray-for(µs, 0 for no) name   -> 1 it was there, 0 it was not
local L, X, stray = KEYS[1], KEYS[3], tonumber(ARGV[3])
local function num(n) return string.format('%.0f', n) end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if stray > 0 then
  redis.call('ZREMRANGEBYSCORE', X, '-inf', num(now))
  redis.call('ZADD', X, num(now + stray), ARGV[2] .. ' ' .. ARGV[1])
  redis.call('PEXPIRE', X, num(stray / 1000))
end
local v = redis.call('HMGET', L, 'k', 's', 'u')
if v[1] ~= ARGV[1] or v[2] ~= ARGV[2] then return 0 end
redis.call('HDEL', L, 'k', 's', 'f', 'u', 'o', 'n', 'm', 'e')
redis.call('ZREM', KEYS[2], ARGV[4])
return tonumber(v[3]) > now and 1 or 0
