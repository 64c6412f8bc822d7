-- Releases or withdraws a ticket, and hands the lock to the next one. One round trip.
-- KEYS e s i o z t x   ARGV name ticket session keep stray-for   -> 'released' | 'withdrawn' | 'gone'
local E, S, I, O = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local Z, T, X = KEYS[5], KEYS[6], KEYS[7]
local name, id, sid, keep, stray = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local answer = 'gone'
local whose, fence = string.match(redis.call('HGET', T, id) or '', '^(%S+) %d+ %d+ (%d+) ')
if whose == sid then
  answer = fence == '0' and 'withdrawn' or 'released'
  redis.call('ZREM', O, sid .. ' ' .. id .. ' ' .. name)
  if keep + stray == 0 and redis.call('HLEN', T) == 1 then
    -- Most often: the ticket is alone.
    redis.call('DEL', Z, T)
    return answer
  end
end
-- common.lua
if answer == 'released' and keep > 0 then
  local k = read(T, id)
  k.sid, k.hold = '-', clock() + keep
  write(T, k)
elseif answer ~= 'gone' then
  drop(O, Z, T, name, id)
end
if stray > 0 then
  local till = num(clock() + stray)
  redis.call('HSET', T, closed(sid, id), till)
  redis.call('ZADD', X, 'GT', till, name)
end
if answer ~= 'gone' then settle(E, S, I, O, Z, T, name, clock()) end
return answer
