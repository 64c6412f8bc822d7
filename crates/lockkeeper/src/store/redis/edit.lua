-- Changes the note of a held ticket, or the cell of its name. Ownership check and write are one step.
-- KEYS e s t c   ARGV ticket session 'note'|'cell' edit has-bytes(1|0) bytes   -> 1 done, 0 not held
local E, S, T, C = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, sid, edit = ARGV[1], ARGV[2], tonumber(ARGV[4])
local k = read(T, id)
if not k or k.sid ~= sid or k.fence == 0 or dead_at(E, S, k) <= clock() then return 0 end
if ARGV[3] == 'note' then
  if edit > k.note_edit then
    k.note_edit, k.note = edit, ARGV[6]
    write(T, k)
  end
  return 1
end
if k.weight ~= k.cap then return 0 end
if edit > k.cell_edit then
  k.cell_edit = edit
  write(T, k)
  if ARGV[5] == '1' then
    redis.call('HSET', C, 'v', ARGV[6], 'f', num(k.fence))
  else
    redis.call('DEL', C)
  end
end
return 1
