-- Is this grant held now? One round trip.
-- KEYS e s t   ARGV ticket fence weight capacity   -> 1 | 0
local k = read(KEYS[3], ARGV[1])
local held = k and k.sid ~= '-' and k.fence == tonumber(ARGV[2])
local alike = k and k.weight == tonumber(ARGV[3]) and k.cap == tonumber(ARGV[4])
if held and alike and dead_at(KEYS[1], KEYS[2], k) > clock() then return 1 end
return 0
