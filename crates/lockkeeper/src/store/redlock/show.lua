-- The ticket that holds the name on this node. One round trip.
-- KEYS the name's hash   -> { ticket, fence, owner, note, edit, held for, remaining } or {}
local v = redis.call('HMGET', KEYS[1], 'k', 'f', 'u', 'o', 'n', 'm', 'e')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if not v[1] or tonumber(v[3]) <= now then return {} end
return {
  v[1], tonumber(v[2]), v[4], v[5], tonumber(v[6]), now - tonumber(v[7]), tonumber(v[3]) - now,
}
