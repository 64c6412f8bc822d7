-- Releases or withdraws a ticket, and hands the lock to the next one. One round trip.
-- KEYS e s i z t x   ARGV name ticket session keep stray-for   -> 'released' | 'withdrawn' | 'gone'
--
-- Most often the ticket is alone in its line, and three calls are enough.
if ARGV[4] == '0' and ARGV[5] == '0' and redis.call('HLEN', KEYS[5]) == 1 then
  local v = redis.call('HGET', KEYS[5], ARGV[2])
  local sid, fence = string.match(v or '', '^(%S+) %d+ %d+ (%d+) ')
  if sid == ARGV[3] then
    redis.call('DEL', KEYS[4], KEYS[5])
    return fence == '0' and 'withdrawn' or 'released'
  end
end
-- common.lua
local E, S, I, Z, T, X = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local name, id, sid, keep, stray = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local k = read(T, id)
local answer = 'gone'
if k and k.sid == sid then
  answer = k.fence > 0 and 'released' or 'withdrawn'
  if keep > 0 and k.fence > 0 then
    k.sid, k.hold = '-', clock() + keep
    write(T, k)
    return answer
  end
  drop(Z, T, id)
end
if stray > 0 then
  local till = num(clock() + stray)
  redis.call('HSET', T, closed(sid, id), till)
  redis.call('ZADD', X, 'GT', till, name)
end
if answer ~= 'gone' and redis.call('ZCARD', Z) > 0 then
  settle(E, S, I, Z, T, name, clock())
end
return answer
