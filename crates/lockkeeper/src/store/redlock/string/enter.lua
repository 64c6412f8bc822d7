-- Takes a plain string lock, as many libraries do: SET NX PX. One round trip.
-- KEYS the name itself, unused, the index, the name's closed tickets, unused
-- ARGV ticket session t for(µs) owner note max-ttl keep name repair
-- -> { 'yes' } | { 'no', remaining }, a second of a lock without end | { 'closed' }
local L, I, X = KEYS[1], KEYS[3], KEYS[4]
local function num(n) return string.format('%.0f', n) end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value, ms = ARGV[1] .. '.' .. ARGV[2], num(math.ceil(ARGV[4] / 1000))
-- A key of another type is another library's lock (Redisson's are hashes) or no lock: it keeps us out.
local kind = redis.call('TYPE', L).ok
local taken = kind ~= 'none' and kind ~= 'string'
local closed = redis.call('ZSCORE', X, ARGV[2] .. ' ' .. ARGV[1])
if closed and tonumber(closed) > now then return { 'closed' } end
if not taken and redis.call('SET', L, value, 'NX', 'PX', ms) then
  redis.call('ZREMRANGEBYSCORE', I, '-inf', num(now))
  redis.call('ZADD', I, num(now + ms * 1000), ARGV[9])
  return { 'yes' }
end
if not taken and redis.call('GET', L) == value then
  -- An earlier copy of the request has made it. It shall live as long as if it were made now.
  ms = math.max(ms, redis.call('PTTL', L))
  redis.call('PEXPIRE', L, num(ms))
  redis.call('ZADD', I, num(now + ms * 1000), ARGV[9])
  return { 'yes' }
end
local left = redis.call('PTTL', L)
if left < 0 then left = 1000 end
return { 'no', left * 1000 }
