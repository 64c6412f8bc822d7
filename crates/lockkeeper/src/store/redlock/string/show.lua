-- A plain string lock. Its value says no more than that another client holds it. One round trip.
-- KEYS the name itself   -> { value, its type, remaining(ms), negative of one without end } or {}
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then return {} end
local value = kind == 'string' and redis.call('GET', KEYS[1]) or ''
return { value, kind, redis.call('PTTL', KEYS[1]) }
