-- Deletes a plain string lock that has this value, whichever library made it. One round trip, after the one that has
-- found the value.
-- KEYS the name itself, the index   ARGV value name   -> 1 it was there, 0 it was not
if redis.call('TYPE', KEYS[1]).ok ~= 'string' then return 0 end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('ZREM', KEYS[2], ARGV[2])
return redis.call('DEL', KEYS[1])
