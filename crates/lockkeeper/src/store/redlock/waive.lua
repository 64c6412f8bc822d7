-- Ends the quarantine of a node that no lockkeeper had used before, if it is still in the run that has said so. One
-- round trip.
-- KEYS the node's boot key   ARGV run   -> 1 done, 0 it has restarted since
local boot = redis.call('GET', KEYS[1])
if not boot or string.match(boot, '^%d+ (%S+)') ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
redis.call('SET', KEYS[1], '0 ' .. ARGV[1] .. string.format(' %.0f', time[1] * 1000000 + time[2]))
return 1
