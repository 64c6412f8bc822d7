-- Finds tickets of one session in lines that it has left. There are none unless the server has fallen
-- back to older data. One round trip for many lines of a bucket.
-- KEYS [t]…   ARGV session   -> { { number of the line, ticket, fence }… }
local found = {}
for n = 1, #KEYS do
  for _, id in ipairs(redis.call('HKEYS', KEYS[n])) do
    local k = string.sub(id, 1, 2) ~= 'x ' and read(KEYS[n], id)
    if k and k.sid == ARGV[1] then found[#found + 1] = { n, id, k.fence } end
  end
end
return found
