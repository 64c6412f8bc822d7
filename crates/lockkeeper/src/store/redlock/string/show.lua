-- Who holds a plain string lock: the value says no more than that somebody does. One round trip.
-- KEYS the name itself   -> { value, 0, '', '', 0, 0, remaining } or {}
if redis.call('TYPE', KEYS[1]).ok ~= 'string' then return {} end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then left = 86400000 end
return { redis.call('GET', KEYS[1]), 0, '', '', 0, 0, left * 1000 }
