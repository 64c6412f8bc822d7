-- Lines for people; reads only. One round trip.
-- KEYS e s [z t]…
-- -> for each line { { ticket, weight, capacity, fence, owner, note, entered ago, granted ago or -1,
-- ends in }… }
local E, S, now, lines = KEYS[1], KEYS[2], clock(), {}
for n = 3, #KEYS, 2 do
  local tickets = {}
  for _, id in ipairs(redis.call('ZRANGE', KEYS[n], 0, -1)) do
    local k = read(KEYS[n + 1], id)
    local ends = k and dead_at(E, S, k) or 0
    if ends > now then
      local owner, ago = '', -1
      if k.sid ~= '-' then owner = select(4, about(S, k.sid)) end
      -- The clock may have been set back since.
      if k.fence > 0 then ago = math.max(0, now - k.granted) end
      tickets[#tickets + 1] =
        { id, k.weight, k.cap, k.fence, owner, k.note, now - k.entered, ago, ends - now }
    end
  end
  lines[#lines + 1] = tickets
end
return lines
