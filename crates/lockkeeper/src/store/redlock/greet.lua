-- Notes which run of this server it is. Another run than the one that was noted has begun with what was on
-- disk, which may be older than what the last one said: it has no vote for the longest TTL, as one that has
-- started empty. One round trip.
-- KEYS the node's boot key   ARGV run   -> 1
--
-- The boot key: "since run", or, written by whoever has set up the node, a number alone.
local boot = redis.call('GET', KEYS[1])
local run = boot and string.match(boot, ' (%S+)$')
if run == ARGV[1] then return 1 end
if not boot or run then
  local time = redis.call('TIME')
  boot = string.format('%.0f', time[1] * 1000000 + time[2])
end
redis.call('SET', KEYS[1], boot .. ' ' .. ARGV[1])
return 1
