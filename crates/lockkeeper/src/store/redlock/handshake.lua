-- Notes the present run of this server, at every new connection. A new run has begun with what was on disk or with a
-- primary's data, which may be older than what the last run answered: so it has no vote for the longest TTL, like a node
-- that has started empty. One round trip.
-- KEYS the node's boot key, the key of max-ttl   ARGV run max-ttl(µs, 0 to write none)
-- -> { 1 if no lockkeeper had used the node before, max-ttl(µs) as it was told, 0 if it was not }
--
-- The boot key: "since run"; or a number alone, written by an operator that has set up the node.
local boot, told = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
local run = boot and string.match(boot, ' (%S+)$')
if run ~= ARGV[1] then
  local since = boot
  if not boot or run then
    local time = redis.call('TIME')
    since = string.format('%.0f', time[1] * 1000000 + time[2])
  end
  redis.call('SET', KEYS[1], since .. ' ' .. ARGV[1])
end
if not told and ARGV[2] ~= '0' then
  told = ARGV[2]
  redis.call('SET', KEYS[2], told)
end
return { boot and 0 or 1, tonumber(told or 0) }
