-- Notes in a session's home, the first bucket, that it is open in another one too. One round trip.
-- KEYS e o   ARGV session bucket   -> 1, or 0 if the session is over
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0) == 0 then return 0 end
redis.call('ZADD', KEYS[2], 0, own(ARGV[1], '@' .. ARGV[2], ''))
return 1
