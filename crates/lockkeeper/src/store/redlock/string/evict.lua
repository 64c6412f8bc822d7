-- Deletes a plain string lock of ours, whoever asks. One round trip.
-- KEYS the name itself, the index   ARGV ticket name   -> 1 it was there, 0 it was not
if redis.call('TYPE', KEYS[1]).ok ~= 'string' then return 0 end
if string.sub(redis.call('GET', KEYS[1]), 1, #ARGV[1] + 1) ~= ARGV[1] .. '.' then return 0 end
redis.call('ZREM', KEYS[2], ARGV[2])
return redis.call('DEL', KEYS[1])
