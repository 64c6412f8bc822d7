-- Ends the ticket of another session. One round trip.
-- KEYS e s n o z t   ARGV name ticket   -> 1 | 0
local E, S, N, O, Z, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local name, id, now = ARGV[1], ARGV[2], clock()
settle(E, S, N, O, Z, T, name, now)
local k = read(T, id)
if not k then return 0 end
drop(S, O, Z, T, name, id, k)
if k.sid ~= '-' then
  local evictions, _, channel = about(S, k.sid)
  if channel ~= '' then
    local rest = string.match(redis.call('HGET', S, k.sid), '^%d+ (.*)$')
    redis.call('HSET', S, k.sid, num(evictions + 1) .. ' ' .. rest)
    redis.call('PUBLISH', channel, id .. ' ended')
  end
end
settle(E, S, N, O, Z, T, name, now)
return 1
