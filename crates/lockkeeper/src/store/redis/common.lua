-- Shared by all scripts, which are this text followed by their own; see scripts.rs.
--
-- Keys of one bucket, all in one slot; a script names those it uses in KEYS:
--   e  zset  session -> when it is dead (µs of the server's clock), lock-delay included;
--            !session -> until when a session that was closed cannot be opened again
--   s  hash  session -> "evictions ttl delay channel owner"
--            @ -> what the clock said when a session was last opened or renewed
--   i  zset  name    -> the last number given out in its line (a place or a fence)
--   o  zset  "session ticket name", all with the score 0: the tickets of each session, in order of text
--            in the first bucket also "session @bucket ", for each other one in which it is open
--   x  zset  name    -> when its closed tickets can be forgotten
--   z  zset  ticket  -> its place in the line of one name
--   t  hash  ticket  -> "session weight capacity fence entered granted hold note_edit cell_edit note";
--                       fence and granted are 0 while it waits; session is - for a hold that has
--                       outlived its session, until hold.
--            x session ticket -> until when a copy of its enter is refused: it was closed
--   c  hash  the cell of one name: v its bytes, f the fence of its writer
-- Numbers are doubles here and stay exact up to 2^53, which the clock reaches in the year 2255.

local function num(n) return string.format('%.0f', n) end

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- The next number of a line: grows, and never falls below the clock.
local function draw(I, name, now)
  if redis.call('ZADD', I, 'GT', 'CH', num(now), name) == 1 then return now end
  return tonumber(redis.call('ZINCRBY', I, 1, name))
end

local TICKET = '^(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (.*)$'

-- The field that notes a ticket as closed for its session.
local function closed(sid, id) return 'x ' .. sid .. ' ' .. id end

local function read(T, id)
  local v = redis.call('HGET', T, id)
  if not v then return nil end
  local sid, weight, cap, fence, entered, granted, hold, ne, ce, note = string.match(v, TICKET)
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

-- Evictions, lock-delay, channel and owner of a session.
local function about(S, sid)
  local v = redis.call('HGET', S, sid)
  if not v then return 0, 0, '', '' end
  local evictions, delay, channel, owner = string.match(v, '^(%d+) %d+ (%d+) (%S+) (.*)$')
  return tonumber(evictions), tonumber(delay), channel, owner
end

-- Notes what the clock says. If it was set back, ends that were reckoned before lie too far ahead: none
-- is further away than a renewal would put it now, so a dead session lasts one TTL more and not for as
-- long as the clock went back.
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

-- A ticket that waits ends with its session; one that is granted stays for the lock-delay.
local function dead_at(E, S, k)
  if k.sid == '-' then return k.hold end
  local ends = tonumber(redis.call('ZSCORE', E, k.sid) or 0)
  if k.fence > 0 or ends == 0 then return ends end
  local _, delay, channel = about(S, k.sid)
  k.channel = channel
  return ends - delay
end

-- How a ticket stands among those of its session.
local function own(sid, id, name) return sid .. ' ' .. id .. ' ' .. name end

-- A session is over. Its tickets go when their lines are next looked at.
local function over(E, S, O, sid)
  redis.call('ZREM', E, sid)
  redis.call('HDEL', S, sid)
  redis.call('ZREMRANGEBYLEX', O, '[' .. sid .. ' @', '(' .. sid .. ' A')
end

-- Takes a ticket out of its line; k is what is known of it, if anything is.
local function drop(O, Z, T, name, id, k)
  redis.call('ZREM', Z, id)
  redis.call('HDEL', T, id)
  if k and k.sid ~= '-' then redis.call('ZREM', O, own(k.sid, id, name)) end
end

-- Grants a waiting ticket whose end was looked up just before.
local function grant(I, T, name, k, now)
  k.fence, k.granted = draw(I, name, now), now
  write(T, k)
  if k.channel ~= '' then redis.call('PUBLISH', k.channel, k.id .. ' ' .. num(k.fence)) end
end

-- Walks a line from its head: the dead fall out and their sessions end, the longest prefix that fits
-- is granted. Reads no further than the first live ticket that must wait. Returns the room left, the
-- first holder, when the line can move by itself, and whether somebody waits.
local function settle(E, S, I, O, Z, T, name, now)
  local at, front = 0, { waits = false }
  while true do
    local ids = redis.call('ZRANGE', Z, at, at + 3)
    if #ids == 0 then return front end
    for _, id in ipairs(ids) do
      local k = read(T, id)
      local ends = k and dead_at(E, S, k) or 0
      if ends <= now then
        drop(O, Z, T, name, id, k)
        -- The session of a waiter may only be expired: its held tickets have their lock-delay.
        if k and k.sid ~= '-' and tonumber(redis.call('ZSCORE', E, k.sid) or 0) <= now then
          over(E, S, O, k.sid)
        end
      else
        front.room = front.room or k.cap
        front.cap = k.cap
        if k.weight > front.room then
          front.waits = true
          return front
        end
        front.room = front.room - k.weight
        front.holder = front.holder or k
        if not front.moves or ends < front.moves then front.moves = ends end
        if k.fence == 0 then
          grant(I, T, name, k, now)
          -- Nobody else can go. Who is dead behind falls out when somebody looks again.
          if front.room == 0 then return front end
        end
        at = at + 1
      end
    end
  end
end

-- What a waiter is told: how many are ahead, when to look again, and who holds the lock.
local function wait(S, ahead, front, now)
  local holder, owner = front.holder, ''
  local recheck = front.moves and front.moves - now or 0
  if not holder then return { ahead, recheck, '', '', 0 } end
  if holder.sid ~= '-' then owner = select(4, about(S, holder.sid)) end
  return { ahead, recheck, owner, holder.note, now - holder.granted }
end

-- Ends a few sessions that are dead: more than one session leaves behind, so that they never pile up.
local function bury(E, S, O, now)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', E, '-inf', num(now), 'LIMIT', 0, 4)) do
    over(E, S, O, gone)
  end
end

-- Names of some lines that should be swept. A script may touch only lines that it was asked for, so
-- the client asks for these the next time.
local function dusty(I, X, now, idle)
  local names = redis.call('ZRANGEBYSCORE', X, '-inf', num(now), 'LIMIT', 0, 32)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', I, '-inf', num(now - idle), 'LIMIT', 0, 32)) do
    names[#names + 1] = name
  end
  return names
end

-- Clears a line: its dead, its closed tickets that are old enough, and all of it if nothing is left and
-- it has been idle for long.
local function sweep(E, S, I, O, X, Z, T, name, now, idle)
  settle(E, S, I, O, Z, T, name, now)
  local flat, latest = redis.call('HGETALL', T), nil
  for n = 1, #flat, 2 do
    if string.sub(flat[n], 1, 2) == 'x ' then
      local till = tonumber(flat[n + 1])
      if till <= now then
        redis.call('HDEL', T, flat[n])
      elseif not latest or till > latest then
        latest = till
      end
    end
  end
  if latest then redis.call('ZADD', X, num(latest), name) else redis.call('ZREM', X, name) end
  local last = redis.call('ZSCORE', I, name)
  if not last or tonumber(last) > now - idle then return end
  if redis.call('EXISTS', Z, T) == 0 then
    redis.call('ZREM', I, name)
  else
    -- Still in use: its turn comes again when it has been idle once more.
    redis.call('ZADD', I, num(now), name)
  end
end
