-- Deletes a plain string lock if it is this one, and notes it as closed if a duplicate of its enter may still come. One
-- round trip.
-- KEYS the name itself, the index, the name's closed tickets
-- ARGV ticket session stray-for(µs, 0 for no) name   -> 1 it was there, 0 it was not
local X, stray = KEYS[3], tonumber(ARGV[3])
local function num(n) return string.format('%.0f', n) end
if stray > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  redis.call('ZREMRANGEBYSCORE', X, '-inf', num(now))
  redis.call('ZADD', X, num(now + stray), ARGV[2] .. ' ' .. ARGV[1])
  redis.call('PEXPIRE', X, num(stray / 1000))
end
if redis.call('TYPE', KEYS[1]).ok ~= 'string' then return 0 end
if redis.call('GET', KEYS[1]) ~= ARGV[1] .. '.' .. ARGV[2] then return 0 end
redis.call('ZREM', KEYS[2], ARGV[4])
return redis.call('DEL', KEYS[1])
