-- Releases or withdraws a ticket, and hands the lock to the next one. One round trip.
-- KEYS e s n o z t x   ARGV name ticket session keep stray-for   -> 'released' | 'withdrawn' | 'gone'
local E, S, N, O = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local Z, T, X = KEYS[5], KEYS[6], KEYS[7]
local name, id, sid, keep, stray = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local answer = 'gone'
local whose, fence = string.match(redis.call('HGET', T, id) or '', '^(%S+) %d+ %d+ (%d+) ')
if whose == sid then
  answer = fence == '0' and 'withdrawn' or 'released'
  local alone = keep + stray == 0 and redis.call('HLEN', T) == 1
  local own = sid .. ' ' .. id .. ' ' .. name
  -- The first write needs no memory: a full server lets a script that has written write on.
  redis.call('ZREM', O, own, alone and '@' .. name or own)
  -- Only a session that is over can get a negative sum, since it had none.
  local sum = redis.call('HINCRBY', S, '#' .. sid, 0 - tonumber(string.sub(id, 1, 8), 16))
  if sum < 0 then redis.call('HDEL', S, '#' .. sid) end
  if alone then
    -- The usual case.
    redis.call('DEL', Z, T)
    return answer
  end
end
-- common.lua
if answer == 'released' and keep > 0 then
  local k = read(T, id)
  k.sid, k.hold = '-', clock() + keep
  write(T, k)
  redis.call('ZADD', X, 'GT', num(k.hold), name)
elseif answer ~= 'gone' then
  drop(S, O, Z, T, name, id)
end
if stray > 0 then
  local till = num(clock() + stray)
  redis.call('HSET', T, closed(sid, id), till)
  redis.call('ZADD', X, 'GT', till, name)
end
if answer ~= 'gone' then settle(E, S, N, O, Z, T, name, clock()) end
return answer
