-- Enters a line: granted, queued or busy in one round trip.
-- KEYS e s n o z t   ARGV name ticket session delay weight capacity queue(1|0) deadline max note
-- -> { 'granted', fence } | { 'queued' | 'busy', ahead, recheck, owner, note, held for }
--  | { 'over' } | { 'closed' } | { 'capacity', n } | { 'full' } | { 'late', now }
local E, S, N, O, Z, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local name, id, sid = ARGV[1], ARGV[2], ARGV[3]
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if now > tonumber(ARGV[8]) then return { 'late', now } end
local dead = redis.call('ZSCORE', E, sid)
if not dead or dead - ARGV[4] <= now then return { 'over' } end
local alone = redis.call('HLEN', T) == 0
if alone then
  -- The usual case. If the clock is not ahead of the bucket's last number, the number is drawn below.
  local n = string.format('%.0f', now)
  if redis.call('ZADD', N, 'GT', 'CH', n, '@') == 1 then
    redis.call('ZADD', Z, n, id)
    redis.call('ZADD', O, 0, sid .. ' ' .. id .. ' ' .. name, 0, '@' .. name)
    redis.call('HINCRBY', S, '#' .. sid, tonumber(string.sub(id, 1, 8), 16))
    local times = n .. ' ' .. n .. ' ' .. n .. ' 0 0 0 '
    redis.call('HSET', T, id, sid .. ' ' .. ARGV[5] .. ' ' .. ARGV[6] .. ' ' .. times .. ARGV[10])
    return { 'granted', now }
  end
end
-- common.lua
local weight, cap = tonumber(ARGV[5]), tonumber(ARGV[6])
local ahead, fits = 0, true
local front
if not alone then
  if redis.call('HEXISTS', T, closed(sid, id)) == 1 then return { 'closed' } end
  front = settle(E, S, N, O, Z, T, name, now)
  local k = read(T, id)
  if k then
    -- Ids are public: a ticket's id gives another session nothing.
    if k.sid ~= sid then return { 'closed' } end
    if k.fence > 0 then return { 'granted', k.fence } end
    return { 'queued', unpack(wait(S, redis.call('ZRANK', Z, id), front, now)) }
  end
  if front.cap and front.cap ~= cap then return { 'capacity', front.cap } end
  fits = not front.waits and (not front.room or weight <= front.room)
  ahead = redis.call('ZCARD', Z)
end
if not fits then
  if ARGV[7] == '0' then return { 'busy', unpack(wait(S, ahead, front, now)) } end
  if ahead >= tonumber(ARGV[9]) then return { 'full' } end
end
local n = draw(N, now)
redis.call('ZADD', Z, num(n), id)
redis.call('ZADD', O, 0, own(sid, id, name), 0, '@' .. name)
redis.call('HINCRBY', S, '#' .. sid, part(id))
local fence, granted = 0, 0
if fits then fence, granted = n, now end
write(T, {
  id = id, sid = sid, weight = weight, cap = cap, fence = fence, entered = now, granted = granted,
  hold = 0, note_edit = 0, cell_edit = 0, note = ARGV[10],
})
if fits then return { 'granted', n } end
return { 'queued', unpack(wait(S, ahead, front, now)) }
