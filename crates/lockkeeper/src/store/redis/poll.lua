-- Says how tickets of one session stand, and grants what has come free by expiry. One round trip for
-- all lines of a bucket.
-- KEYS e s n o x [z t]…   ARGV session all(1|0) [name ticket session]…
-- -> for each: { 'granted', fence } | { 'queued', ahead, recheck, owner, note, held for } | { 'gone' }
local E, S, N, O = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sid, now, answers = ARGV[1], clock(), {}
for n = 1, (#KEYS - 5) / 2 do
  local Z, T = KEYS[4 + 2 * n], KEYS[5 + 2 * n]
  local name, id = ARGV[3 * n], ARGV[3 * n + 1]
  local front = settle(E, S, N, O, Z, T, name, now)
  local k = read(T, id)
  if not k or k.sid ~= sid then
    -- After an eviction of keys: the list of the session must not go on naming the ticket.
    unlist(S, O, name, id, sid)
    answers[n] = { 'gone' }
  elseif k.fence > 0 then
    answers[n] = { 'granted', k.fence }
  else
    answers[n] = { 'queued', unpack(wait(S, redis.call('ZRANK', Z, id), front, now)) }
  end
end
-- The client compares all tickets because the sum differs from its own: so the sum is counted anew. After an eviction
-- of keys it has grown from zero.
if ARGV[2] == '1' then recount(S, O, sid) end
return answers
