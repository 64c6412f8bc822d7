-- Says how tickets of one session stand, and grants what has come free by expiry. One round trip for
-- all lines of a bucket.
-- KEYS e s i o x [z t]…   ARGV session unused unused [name ticket]…
-- -> for each: { 'granted', fence } | { 'queued', ahead, recheck, owner, note, held for } | { 'gone' }
local E, S, I, O = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sid, now, answers = ARGV[1], clock(), {}
for n = 1, (#KEYS - 5) / 2 do
  local Z, T = KEYS[4 + 2 * n], KEYS[5 + 2 * n]
  local name, id = ARGV[2 + 2 * n], ARGV[3 + 2 * n]
  local front = settle(E, S, I, O, Z, T, name, now)
  local k = read(T, id)
  if not k or k.sid ~= sid then
    answers[n] = { 'gone' }
  elseif k.fence > 0 then
    answers[n] = { 'granted', k.fence }
  else
    answers[n] = { 'queued', unpack(wait(S, redis.call('ZRANK', Z, id), front, now)) }
  end
end
return answers
