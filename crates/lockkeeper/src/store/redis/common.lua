-- Shared by all scripts, which are this text followed by their own; see scripts.rs.
--
-- Keys of one bucket, all in one slot; a script names those it uses in KEYS:
--   e  zset  session -> when it is dead (µs of the server's clock), lock-delay included; 0 once it has
--            ended and left tickets that no script has swept yet
--            !session -> until when a session that was closed cannot be opened again
--   s  hash  session -> "evictions ttl delay channel owner"
--            #session -> the sum of its tickets' ids, see part
--            @ -> what the clock said when a session was last opened or renewed
--   n  zset  @ -> the last number given out in the bucket (a place or a fence)
--   o  zset  all with the score 0, so that they stand in order of text:
--            "session ticket name": the tickets of each session
--            "@name": the lines that have tickets or holds
--            in the first bucket also "session @bucket ", for each other one in which it is open
--   x  zset  name    -> when its closed tickets can be forgotten, and its holds are over
--   z  zset  ticket  -> its place in the line of one name
--   t  hash  ticket  -> "session weight capacity fence entered granted hold note_edit cell_edit note";
--                       fence and granted are 0 while it waits; session is - for a hold that has
--                       outlived its session, until hold.
--            x session ticket -> until when a late duplicate of its enter is refused: it was closed
--   c  hash  the cell of one name: v its bytes, f the fence of its writer
-- An empty line leaves nothing behind: the fence of its next grant is above n's @.
-- Numbers are doubles here and stay exact up to 2^53, which the clock reaches in the year 2255.

local function num(n) return string.format('%.0f', n) end

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- The next number of the bucket: grows, and never falls below the clock.
local function draw(N, now)
  if redis.call('ZADD', N, 'GT', 'CH', num(now), '@') == 1 then return now end
  return tonumber(redis.call('ZINCRBY', N, 1, '@'))
end

-- What a ticket adds to the sum of its session: the first four bytes of its id, big-endian.
local function part(id) return tonumber(string.sub(id, 1, 8), 16) end

local TICKET = '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$'

-- The field that notes a ticket as closed for its session.
local function closed(sid, id) return 'x ' .. sid .. ' ' .. id end

local function read(T, id)
  local v = redis.call('HGET', T, id)
  if not v then return nil end
  local sid, weight, cap, fence, entered, granted, hold, ne, ce, note = string.match(v, TICKET)
  if not sid then return nil end
  return {
    id = id, sid = sid, weight = tonumber(weight), cap = tonumber(cap), fence = tonumber(fence),
    entered = tonumber(entered), granted = tonumber(granted), hold = tonumber(hold),
    note_edit = tonumber(ne), cell_edit = tonumber(ce), note = note,
  }
end

local function write(T, k)
  -- The note is put behind: a format would end it at a zero byte.
  redis.call('HSET', T, k.id, string.format(
    '%s %.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f ',
    k.sid, k.weight, k.cap, k.fence, k.entered, k.granted, k.hold, k.note_edit, k.cell_edit
  ) .. k.note)
end

-- Evictions, lock-delay, channel and owner of a session. If the server has evicted the entry, nothing is known;
-- the owner then reads as one without a process, a host and a program.
local function about(S, sid)
  local v = redis.call('HGET', S, sid)
  if not v then return 0, 0, '', '0\31\31' end
  local evictions, delay, channel, owner = string.match(v, '^(%d+) %d+ (%d+) (%S+) (.*)$')
  return tonumber(evictions), tonumber(delay), channel, owner
end

-- Notes what the clock says. If it was set back, ends that were computed before lie too far ahead: each is moved
-- to where a renewal would put it now. So a dead session lasts one TTL more, and not for as long as the clock went
-- back.
local function mark(E, S, now)
  local last = tonumber(redis.call('HGET', S, '@') or 0)
  redis.call('HSET', S, '@', num(now))
  if last < now + 1000000 then return end
  local ends = redis.call('ZRANGEBYSCORE', E, '(' .. num(now), '+inf', 'WITHSCORES')
  for n = 1, #ends, 2 do
    local ttl, delay = string.match(redis.call('HGET', S, ends[n]) or '', '^%d+ (%d+) (%d+) ')
    local most = ttl and now + ttl + delay
    if most and tonumber(ends[n + 1]) > most then redis.call('ZADD', E, num(most), ends[n]) end
  end
end

-- A waiting ticket ends with its session's TTL; a granted ticket stays for the lock-delay.
local function dead_at(E, S, k)
  if k.sid == '-' then return k.hold end
  local ends = tonumber(redis.call('ZSCORE', E, k.sid) or 0)
  if k.fence > 0 or ends == 0 then return ends end
  local _, delay, channel = about(S, k.sid)
  k.channel = channel
  return ends - delay
end

-- A ticket's entry in the list of its session.
local function own(sid, id, name) return sid .. ' ' .. id .. ' ' .. name end

-- The range of a session's tickets in o, and that of its notes on other buckets.
local function mine(sid) return '[' .. sid .. ' ', '(' .. sid .. '!' end
local function notes(sid) return '[' .. sid .. ' @', '(' .. sid .. ' A' end

-- Ends a session. Its tickets go when a script next looks at their lines or sweeps them; until then the session is
-- kept with an end of 0, so that bury finds them.
local function over(E, S, O, sid)
  redis.call('HDEL', S, sid, '#' .. sid)
  redis.call('ZREMRANGEBYLEX', O, notes(sid))
  if redis.call('ZLEXCOUNT', O, mine(sid)) == 0 then
    redis.call('ZREM', E, sid)
  else
    redis.call('ZADD', E, 0, sid)
  end
end

-- Takes a ticket off the list of its session.
local function unlist(S, O, name, id, sid)
  if redis.call('ZREM', O, own(sid, id, name)) == 1 then
    -- Only a session that is over can get a negative sum, since it had none. (0 - x, because -x of 0 is -0.)
    if redis.call('HINCRBY', S, '#' .. sid, 0 - part(id)) < 0 then
      redis.call('HDEL', S, '#' .. sid)
    end
  end
end

-- Takes a ticket out of its line; k is its record, if there is one.
local function drop(S, O, Z, T, name, id, k)
  redis.call('ZREM', Z, id)
  redis.call('HDEL', T, id)
  if k and k.sid ~= '-' then unlist(S, O, name, id, k.sid) end
end

-- Grants a waiting ticket whose end was looked up just before.
local function grant(N, T, k, now)
  k.fence, k.granted = draw(N, now), now
  write(T, k)
  if k.channel ~= '' then redis.call('PUBLISH', k.channel, k.id .. ' ' .. num(k.fence)) end
end

-- Brings a line up to date from its head: removes the dead tickets and ends their sessions, grants the longest prefix
-- that fits. Reads no further than the first live ticket that must wait. Returns the room left, the first holder, when
-- the line can move without a request, and whether a ticket waits.
local function settle(E, S, N, O, Z, T, name, now)
  local at, front = 0, { waits = false }
  while true do
    local ids = redis.call('ZRANGE', Z, at, at + 3)
    if #ids == 0 then
      if at == 0 then redis.call('ZREM', O, '@' .. name) end
      return front
    end
    for _, id in ipairs(ids) do
      local k = read(T, id)
      local ends = k and dead_at(E, S, k) or 0
      if ends <= now then
        drop(S, O, Z, T, name, id, k)
        -- A waiter's session may only be expired, with held tickets that still have their lock-delay.
        if k and k.sid ~= '-' and tonumber(redis.call('ZSCORE', E, k.sid) or 0) <= now then
          over(E, S, O, k.sid)
        end
      else
        front.room = front.room or k.cap
        front.cap = k.cap
        -- The first waiting ticket counts too: when it ends, tickets behind it may fit.
        if not front.moves or ends < front.moves then front.moves = ends end
        if k.weight > front.room then
          front.waits = true
          return front
        end
        front.room = front.room - k.weight
        front.holder = front.holder or k
        if k.fence == 0 then
          grant(N, T, k, now)
          -- No other ticket fits. Dead tickets behind it are removed when a script next looks at the line.
          if front.room == 0 then return front end
        end
        at = at + 1
      end
    end
  end
end

-- The reply to a waiter: how many tickets are ahead, when to poll again, and the holder.
local function wait(S, ahead, front, now)
  local holder, owner = front.holder, ''
  local recheck = front.moves and front.moves - now or 0
  if not holder then return { ahead, recheck, '', '', 0 } end
  if holder.sid ~= '-' then owner = select(4, about(S, holder.sid)) end
  return { ahead, recheck, owner, holder.note, now - holder.granted }
end

-- Ends a few dead sessions: more in each call than one call can add, so that they never pile up. Returns what the
-- client's next renewal shall sweep, since a script may touch only keys that it was called with: "session ticket name"
-- for a ticket that such a session has left, "- - name" for a line in x.
local function bury(E, S, O, X, now)
  local dust = {}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', X, '-inf', num(now), 'LIMIT', 0, 32)) do
    dust[#dust + 1] = '- - ' .. name
  end
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', E, '-inf', num(now), 'LIMIT', 0, 4)) do
    over(E, S, O, gone)
    local from, to = mine(gone)
    for _, entry in ipairs(redis.call('ZRANGE', O, from, to, 'BYLEX', 'LIMIT', 0, 64)) do
      dust[#dust + 1] = entry
    end
  end
  return dust
end

-- Removes closed tickets that are old enough, and notes in x when to come again.
local function forget(X, T, name, now)
  local flat, latest = redis.call('HGETALL', T), 0
  for n = 1, #flat, 2 do
    local till = 0
    if string.sub(flat[n], 1, 2) == 'x ' then
      till = tonumber(flat[n + 1])
      if till <= now then redis.call('HDEL', T, flat[n]) end
    elseif string.sub(flat[n + 1], 1, 2) == '- ' then
      local hold = read(T, flat[n])
      till = hold and hold.hold or 0
    end
    latest = math.max(latest, till)
  end
  if latest > now then redis.call('ZADD', X, num(latest), name) else redis.call('ZREM', X, name) end
end

-- Sweeps an entry that bury has returned: a ticket of a session that is over, or all that is old in a line.
local function sweep(E, S, N, O, X, Z, T, name, id, sid, now)
  if sid ~= '-' then
    local k = read(T, id)
    if not k or k.sid ~= sid then
      unlist(S, O, name, id, sid)
    elseif dead_at(E, S, k) <= now then
      drop(S, O, Z, T, name, id, k)
    end
  end
  settle(E, S, N, O, Z, T, name, now)
  if sid == '-' then forget(X, T, name, now) end
end

-- Identifies the server and the history of its data: another server, or the same one with other data, gives another
-- text. The number of evicted keys is part of it, since an eviction can take tickets that n and o still have. Empty
-- where scripts may not call INFO.
local function history()
  local said = {}
  local asks = { server = 'run_id:%w+', replication = 'master_replid:%w+', stats = 'evicted_keys:%d+' }
  for n, section in ipairs({ 'server', 'replication', 'stats' }) do
    local info = redis.pcall('INFO', section)
    said[n] = type(info) == 'string' and string.match(info, asks[section]) or ''
  end
  return table.concat(said, ' ')
end

-- Counts the sum of a session's tickets anew.
local function recount(S, O, sid)
  local total, from, to = 0, mine(sid)
  for _, entry in ipairs(redis.call('ZRANGE', O, from, to, 'BYLEX')) do
    total = total + (part(string.sub(entry, #sid + 2)) or 0)
  end
  redis.call('HSET', S, '#' .. sid, num(total))
  return total
end

-- The sum of a session's tickets, counted anew if there is none.
local function sum(S, O, sid)
  local kept = redis.call('HGET', S, '#' .. sid)
  return kept and tonumber(kept) or recount(S, O, sid)
end
