-- Asks a node what max-ttl it was told, and tells it ours if it was told none. One round trip.
-- KEYS the key of max-ttl   ARGV max-ttl(µs, 0 to write none)   -> max-ttl(µs) as it was told, 0 if it was not
local told = redis.call('GET', KEYS[1])
if not told and ARGV[1] ~= '0' then
  told = ARGV[1]
  redis.call('SET', KEYS[1], told)
end
return tonumber(told or 0)
