-- Clears a line: its dead, its closed tickets that are old enough, and all of it if nothing is left and
-- it has been idle for long.
-- KEYS e s i o x z t   ARGV name idle   -> 1
local E, S, I, O = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local X, Z, T = KEYS[5], KEYS[6], KEYS[7]
local name, idle, now = ARGV[1], tonumber(ARGV[2]), clock()
settle(E, S, I, O, Z, T, name, now)
local flat, latest = redis.call('HGETALL', T), nil
for n = 1, #flat, 2 do
  if string.sub(flat[n], 1, 2) == 'x ' then
    local till = tonumber(flat[n + 1])
    if till <= now then
      redis.call('HDEL', T, flat[n])
    elseif not latest or till > latest then
      latest = till
    end
  end
end
if latest then redis.call('ZADD', X, num(latest), name) else redis.call('ZREM', X, name) end
local last = redis.call('ZSCORE', I, name)
if last and tonumber(last) <= now - idle then
  if redis.call('EXISTS', Z, T) == 0 then
    redis.call('ZREM', I, name)
  else
    -- Still in use: its turn comes again when it has been idle once more.
    redis.call('ZADD', I, num(now), name)
  end
end
return 1
