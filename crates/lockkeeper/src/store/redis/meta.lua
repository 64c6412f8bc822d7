-- The identity of the data, written by the first client. Write and read are one step, so that no FLUSHALL comes between
-- them. One round trip.
-- KEYS meta   ARGV id layout buckets   -> { id, layout or nil, buckets }
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'id', ARGV[1], 'layout', ARGV[2], 'buckets', ARGV[3])
end
return redis.call('HMGET', KEYS[1], 'id', 'layout', 'buckets')
