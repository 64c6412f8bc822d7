-- Changes the note of a ticket that this node holds. One round trip.
-- KEYS the name's hash   ARGV ticket session edit bytes   -> 1 done, now or before, 0 not held
local L = KEYS[1]
local time = redis.call('TIME')
local v = redis.call('HMGET', L, 'k', 's', 'u', 'm')
local till = tonumber(v[3] or 0)
if v[1] ~= ARGV[1] or v[2] ~= ARGV[2] or till <= time[1] * 1000000 + time[2] then return 0 end
if tonumber(ARGV[3]) > tonumber(v[4]) then
  redis.call('HSET', L, 'n', ARGV[4], 'm', ARGV[3])
end
return 1
