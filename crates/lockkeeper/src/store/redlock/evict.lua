-- Takes the ticket of any session away. The counter stays. One round trip.
-- KEYS the name's hash, the index   ARGV ticket name   -> 1 it was there, 0 it was not
local L = KEYS[1]
local time = redis.call('TIME')
local v = redis.call('HMGET', L, 'k', 'u')
if v[1] ~= ARGV[1] then return 0 end
redis.call('HDEL', L, 'k', 's', 'f', 'u', 'o', 'n', 'm', 'e')
redis.call('ZREM', KEYS[2], ARGV[2])
return tonumber(v[2]) > time[1] * 1000000 + time[2] and 1 or 0
