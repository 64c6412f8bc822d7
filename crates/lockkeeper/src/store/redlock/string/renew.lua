-- Renews a plain string lock that is still ours; never shortens it. One round trip.
-- KEYS the name itself, the index   ARGV ticket session for(µs) keep name   -> 1 held, 0 not
local function num(n) return string.format('%.0f', n) end
if redis.call('TYPE', KEYS[1]).ok ~= 'string' then return 0 end
if redis.call('GET', KEYS[1]) ~= ARGV[1] .. '.' .. ARGV[2] then return 0 end
local ms = math.max(math.ceil(ARGV[3] / 1000), redis.call('PTTL', KEYS[1]))
local time = redis.call('TIME')
redis.call('ZADD', KEYS[2], num(time[1] * 1000000 + time[2] + ms * 1000), ARGV[5])
return redis.call('PEXPIRE', KEYS[1], num(ms))
