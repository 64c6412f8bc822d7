-- Writes the cell of a name under a grant, if that is held now. Check and write are one step.
-- KEYS e s t c   ARGV ticket fence weight capacity bytes   -> 1 done | 0 not held
local k = read(KEYS[3], ARGV[1])
local held = k and k.sid ~= '-' and k.fence == tonumber(ARGV[2])
local alike = k and k.weight == tonumber(ARGV[3]) and k.cap == tonumber(ARGV[4])
if not (held and alike and dead_at(KEYS[1], KEYS[2], k) > clock()) then return 0 end
redis.call('HSET', KEYS[4], 'v', ARGV[5], 'f', num(k.fence))
return 1
