-- Votes on a proposal; or, as a repair, stores a ticket again that a majority of the nodes holds. One round trip.
-- KEYS the name's hash, the node's boot key, the index, the name's closed tickets, the key of max-ttl
-- ARGV ticket session t for(µs) owner note max-ttl(µs) keep(µs) name repair(1, 0)
-- -> { 'yes' } | { 'no', remaining } | { 'low', counter } | { 'void', remaining } | { 'closed' }
--    | { 'differs', max-ttl }, this node was told another max-ttl
--
-- The hash: k ticket, s its session, f fence, u until, c counter, o owner, n note, m the number of
-- the note's last edit, e entered.
local L, B, I, X, M = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, sid, t, length = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local repair = ARGV[10] == '1'
local function num(n) return string.format('%.0f', n) end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- The quarantine below is as long as the longest lock that may have been forgotten: all clients must say the same.
local told = redis.call('GET', M)
if told and told ~= ARGV[7] and not repair then return { 'differs', tonumber(told) } end

-- A node that has started empty may have forgotten a holder. It has no vote for the longest TTL, and neither has a node
-- that has started with older data (handshake.lua).
local boot = redis.call('GET', B)
if not boot then
  boot = num(now)
  redis.call('SET', B, boot .. ' ?')
end
local since = tonumber(string.match(boot, '^%d+'))
local out = since + tonumber(ARGV[7]) - now
if out > 0 and not repair then return { 'void', out } end

local closed = redis.call('ZSCORE', X, sid .. ' ' .. id)
if closed and tonumber(closed) > now then return { 'closed' } end

local v = redis.call('HMGET', L, 'k', 's', 'u', 'c')
-- The node may have forgotten the counter of a name that it does not know. That counter was below this floor, unless a
-- client's clock was ahead of this server's by more than max-ttl.
local floor = tonumber(string.match(boot, '^%d+ %S+ (%d+)$') or since > 0 and since + tonumber(ARGV[7]) or 0)
local till, counter = tonumber(v[3] or 0), tonumber(v[4] or floor)
if v[1] and till > now then
  if v[1] ~= id or v[2] ~= sid then return { 'no', till - now } end
  if counter == t or repair then return { 'yes' } end
end
if counter >= t and not repair then return { 'low', counter } end
if not told then redis.call('SET', M, ARGV[7]) end
-- A repair is no vote, but the counter never goes back.
redis.call('HSET', L, 'k', id, 's', sid, 'f', num(t), 'u', num(now + length),
  'c', num(math.max(t, counter)), 'o', ARGV[5], 'n', ARGV[6], 'm', 0, 'e', num(now))
redis.call('PEXPIRE', L, num((length + tonumber(ARGV[8])) / 1000))
redis.call('ZREMRANGEBYSCORE', I, '-inf', num(now))
redis.call('ZADD', I, num(now + length), ARGV[9])
return { 'yes' }
