-- Notes the present run of this server, at every new connection. A new run has begun with what was on disk or with a
-- primary's data, which may be older than what the last run answered: so it has no vote for the longest TTL, like a node
-- that has started empty. One round trip.
-- KEYS the node's boot key, the key of max-ttl   ARGV run max-ttl(µs, 0 to write none)
-- -> { 1 if there was no boot key, max-ttl(µs) as it was told, 0 if it was not }
--
-- The boot key: "since run"; "0 run floor" of a node without a quarantine, which accepts of unknown names only fences
-- above the floor; or a number alone, written by an operator that has set up the node.
local boot, told = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
if not boot or string.match(boot, '^%d+ (%S+)') ~= ARGV[1] then
  local time = redis.call('TIME')
  local now = string.format('%.0f', time[1] * 1000000 + time[2])
  local set = boot and string.match(boot, '^%d+$')
  local text = (set or now) .. ' ' .. ARGV[1]
  if set == '0' then text = text .. ' ' .. now end
  redis.call('SET', KEYS[1], text)
end
if not told and ARGV[2] ~= '0' then
  told = ARGV[2]
  redis.call('SET', KEYS[2], told)
end
return { boot and 0 or 1, tonumber(told or 0) }
