-- The operations on one line. Each is one transaction.
--
-- No transaction waits for a row while it holds another: it waits for a line's row first, and a transaction that
-- needs several lines, or the row of a session that it found dead, skips what is locked. A renewal takes only its
-- session's advisory lock and row.
--
-- Three kinds of advisory locks end with their transaction:
--   session  a renewal holds it exclusively. A transaction may end the session as dead only if it can share it.
--   ticket   a user's transaction that has checked a fence shares it. A transaction that would end the ticket needs
--            it exclusively, and is told "busy" (55P03) until then.
--   name     a user's transaction that holds the name as its own lock (lk_lock) holds it exclusively. A transaction
--            that grants must share it, and otherwise grants nothing.
--
-- No wait for a row is longer than 200 ms, or 20 ms for a request that does not queue or has waited for that row
-- just before. Our own connections have 200 ms as their setting; on others, as behind a pooler, lk_bound sets it for
-- the transaction. (A SET in the function itself costs more.)
--
-- A function that answers one row is in PL/pgSQL, also if it is a single query: a connection keeps its plan. The
-- server plans the query of an SQL function that it cannot inline at every call, which takes 100 to 800
-- microseconds here.
--
-- Refusals are errors, so that they write nothing (first.sql, and enter.sql before it asks, may leave the ticket of a
-- session that is not there, which is dead to all):
--   LK101 the session is over · LK102 the ticket was closed · LK103 another capacity (in DETAIL)
--   LK104 the line is full · LK105 the request came too late (the server's clock in DETAIL)

-- Exact: microseconds since 1970 are less than 2^53.
CREATE OR REPLACE FUNCTION lockkeeper.lk_micros(p_at timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT (date_part('epoch', p_at) * 1000000)::bigint $$;

CREATE OR REPLACE FUNCTION lockkeeper.lk_key(p_what text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended(p_what, hashtext('lockkeeper.')) $$;

CREATE OR REPLACE FUNCTION lockkeeper.lk_ticket_key(p_ticket bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT lockkeeper.lk_key('ticket/' || encode(p_ticket, 'hex')) $$;

CREATE OR REPLACE FUNCTION lockkeeper.lk_name_key(p_name text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT lockkeeper.lk_key('name/' || p_name) $$;

CREATE OR REPLACE FUNCTION lockkeeper.lk_session_key(p_session bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT lockkeeper.lk_key('session/' || encode(p_session, 'hex')) $$;

-- Bounds the wait for rows, if nothing does.
CREATE OR REPLACE FUNCTION lockkeeper.lk_bound() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('lock_timeout', '200ms', true);
END $$;

-- A request that does not queue waits for the row only for a moment: all later requests on its connection wait
-- behind it.
CREATE OR REPLACE FUNCTION lockkeeper.lk_hurry() RETURNS boolean
LANGUAGE sql AS $$ SELECT set_config('lock_timeout', '20ms', true) IS NOT NULL $$;

-- Has this ticket's time passed? Then its session is ended in the same transaction: a renewal that
-- was faster makes the ticket live, one that is slower finds its session over. While a renewal is about
-- to commit, the session is not dead for now.
--
-- The advisory lock keeps renewals out. The session's row is skipped if another transaction has it, perhaps a user's
-- that stays open for long and takes a dead session's lock: the session's other tickets are free all the same.
CREATE OR REPLACE FUNCTION lockkeeper.lk_bury(
  p_session bytea, p_hold_until timestamptz, p_granted boolean, p_now timestamptz
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  s lockkeeper.lk_session;
BEGIN
  IF p_session IS NULL THEN
    RETURN p_hold_until <= p_now;
  END IF;
  SELECT * INTO s FROM lockkeeper.lk_session WHERE id = p_session;
  IF NOT FOUND THEN
    RETURN true;
  ELSIF s.expires > p_now OR (p_granted AND s.dead_at > p_now) THEN
    RETURN false;
  ELSIF s.expires > '-infinity' THEN
    IF NOT pg_try_advisory_xact_lock_shared(lockkeeper.lk_session_key(p_session)) THEN
      RETURN false;
    END IF;
    -- Read again: a renewal may have come between.
    PERFORM FROM lockkeeper.lk_session WHERE id = p_session AND expires > p_now;
    IF FOUND THEN
      RETURN false;
    END IF;
    UPDATE lockkeeper.lk_session SET expires = '-infinity'
     WHERE id IN (SELECT id FROM lockkeeper.lk_session WHERE id = p_session FOR UPDATE SKIP LOCKED);
  END IF;
  RETURN true;
END $$;

-- Brings a line up to date, whose row the caller has locked: the dead fall out, the longest prefix
-- that fits is granted. Reads no further than the first live ticket that must wait. Of the dead behind the first
-- ticket it takes a hundred at the most, or as many as lk.most says: each needs up to two advisory locks until
-- the transaction ends, and a server has room for few. Then it says that the line can move at once, and
-- the next call goes on.
--
-- p_gone is how many tickets the caller has just deleted from lk_ticket: the line's row is updated once for all.
--
-- o_room is what a newcomer could have, 0 if a ticket waits; o_moves_at is when the line can move because an expiry
-- has passed; o_news lists the new grants: channel, ticket, fence, three by three.
CREATE OR REPLACE FUNCTION lockkeeper.lk_settle(
  p_name text, p_now timestamptz, p_gone integer,
  OUT o_room integer, OUT o_waits boolean, OUT o_moves_at timestamptz, OUT o_news text[]
) LANGUAGE plpgsql AS $$
DECLARE
  l lockkeeper.lk_line;
  r record;
  v_ends timestamptz;
  v_last bigint;
  v_low bigint;
  v_gone integer := p_gone;
  v_most integer := coalesce(nullif(current_setting('lk.most', true), ''), '100')::integer;
  v_head boolean;
BEGIN
  SELECT * INTO l FROM lockkeeper.lk_line WHERE name = p_name;
  o_room := l.capacity;
  o_waits := false;
  o_news := '{}';
  v_last := greatest(l.last, l.fence);
  v_head := l.id IS NOT NULL;
  IF v_head THEN
    IF lockkeeper.lk_bury(l.session, l.hold_until, true, p_now)
       AND pg_try_advisory_xact_lock(lockkeeper.lk_ticket_key(l.id)) THEN
      v_head := false;
    ELSE
      o_room := o_room - l.weight;
      SELECT coalesce(l.hold_until, s.dead_at) INTO o_moves_at
        FROM (SELECT 1) one LEFT JOIN lockkeeper.lk_session s ON s.id = l.session;
      o_moves_at := greatest(o_moves_at, p_now + interval '5 ms');
    END IF;
  END IF;
  IF NOT pg_try_advisory_xact_lock_shared(lockkeeper.lk_name_key(p_name)) THEN
    o_room := 0;
    o_waits := true;
    o_moves_at := p_now + interval '25 ms';
  ELSIF l.others > p_gone THEN
    FOR r IN
      SELECT t.seq, t.id, t.session, t.weight, t.fence, t.hold_until, s.expires, s.dead_at, s.channel
        FROM lockkeeper.lk_ticket t LEFT JOIN lockkeeper.lk_session s ON s.id = t.session
       WHERE t.name = p_name AND t.seq >= l.lowest ORDER BY t.seq
    LOOP
      v_ends := coalesce(r.hold_until, CASE WHEN r.fence IS NULL THEN r.expires ELSE r.dead_at END,
                         '-infinity');
      IF v_gone < v_most AND v_ends <= p_now
         AND lockkeeper.lk_bury(r.session, r.hold_until, r.fence IS NOT NULL, p_now)
         AND (r.fence IS NULL OR pg_try_advisory_xact_lock(lockkeeper.lk_ticket_key(r.id))) THEN
        DELETE FROM lockkeeper.lk_ticket WHERE name = p_name AND seq = r.seq;
        v_gone := v_gone + 1;
        CONTINUE;
      END IF;
      v_low := coalesce(v_low, r.seq);
      IF v_gone = v_most AND v_ends <= p_now THEN
        o_waits := true;
        o_room := 0;
        o_moves_at := p_now + interval '1 ms';
        EXIT;
      ELSIF r.weight <= o_room AND (r.fence IS NOT NULL OR v_ends > p_now) THEN
        o_room := o_room - r.weight;
        o_moves_at := least(o_moves_at, greatest(v_ends, p_now + interval '5 ms'));
        IF r.fence IS NULL THEN
          v_last := greatest(v_last + 1, lockkeeper.lk_micros(clock_timestamp()));
          UPDATE lockkeeper.lk_ticket SET fence = v_last, granted = p_now
           WHERE name = p_name AND seq = r.seq;
          o_news := o_news || ARRAY[r.channel, encode(r.id, 'hex'), v_last::text];
        END IF;
      ELSE
        o_waits := true;
        o_room := 0;
        EXIT;
      END IF;
    END LOOP;
  END IF;
  IF v_gone > 0 OR v_last > greatest(l.last, l.fence) OR v_head <> (l.id IS NOT NULL) THEN
    UPDATE lockkeeper.lk_line
       SET last = v_last, others = others - v_gone, lowest = coalesce(v_low, lowest),
           id = CASE WHEN v_head THEN id END, session = CASE WHEN v_head THEN session END,
           hold_until = CASE WHEN v_head THEN hold_until END
     WHERE name = p_name;
  END IF;
END $$;

-- The holder that a waiting client is shown.
CREATE OR REPLACE FUNCTION lockkeeper.lk_holder(
  p_name text, p_now timestamptz,
  OUT o_host text, OUT o_pid bigint, OUT o_program text, OUT o_note bytea, OUT o_held bigint
) LANGUAGE plpgsql STABLE AS $$
BEGIN
  SELECT host, pid, program, note, lockkeeper.lk_micros(p_now) - lockkeeper.lk_micros(granted)
    INTO o_host, o_pid, o_program, o_note, o_held
    FROM lockkeeper.lk_standing
   WHERE name = p_name AND fence IS NOT NULL AND host IS NOT NULL ORDER BY seq LIMIT 1;
END $$;

-- Enters a line. Uncontended it is one update in place; first.sql does the same with less.
--
-- o_what is granted, queued or busy. o_news is NULL if the line was empty and the ticket stands in the line's own
-- row. p_until is the moment, in microseconds of the server's clock, after which the request must have no effect.
CREATE OR REPLACE FUNCTION lockkeeper.lk_enter(
  p_name text, p_ticket bytea, p_session bytea, p_weight integer, p_capacity integer,
  p_queue boolean, p_note bytea, p_until bigint, p_most integer,
  OUT o_what text, OUT o_fence bigint, OUT o_ahead integer, OUT o_recheck bigint,
  OUT o_host text, OUT o_pid bigint, OUT o_program text, OUT o_note bytea, OUT o_held bigint,
  OUT o_news text[]
) LANGUAGE plpgsql AS $$
DECLARE
  -- First the name's key, then the number: so it is greater than that of every user's transaction that
  -- has had the name. Before the wait for the row, which does no harm to its order in the line.
  v_ours boolean := pg_try_advisory_xact_lock_shared(lockkeeper.lk_name_key(p_name));
  v_now timestamptz := clock_timestamp();
  v_number bigint := lockkeeper.lk_micros(v_now);
  v_fits boolean;
  v_alive boolean;
  v_closed boolean;
  v_own record;
  f record;
  v_line lockkeeper.lk_line;
BEGIN
  IF NOT p_queue THEN
    PERFORM lockkeeper.lk_hurry();
  ELSIF current_setting('lock_timeout') = '0' THEN
    PERFORM lockkeeper.lk_bound();
  END IF;
  INSERT INTO lockkeeper.lk_line AS l
    (name, last, capacity, id, session, weight, fence, entered, note)
  VALUES (p_name, v_number, p_capacity, p_ticket, p_session, p_weight, v_number, v_now, p_note)
  ON CONFLICT (name) DO UPDATE SET
    capacity = p_capacity, id = p_ticket, session = p_session, weight = p_weight,
    fence = greatest(l.last + 1, l.fence + 1, v_number), entered = v_now, hold_until = NULL,
    note = p_note, note_edit = 0, cell_edit = 0
    WHERE l.id IS NULL AND l.others = 0
  RETURNING fence INTO o_fence;
  v_fits := FOUND;
  v_now := clock_timestamp();
  IF p_until < v_number THEN
    RAISE EXCEPTION 'the request came too late'
      USING ERRCODE = 'LK105', DETAIL = v_number::text;
  END IF;
  SELECT s.expires > v_now,
         EXISTS (SELECT FROM lockkeeper.lk_closed WHERE ticket = p_ticket AND session = p_session)
    INTO v_alive, v_closed FROM lockkeeper.lk_session s WHERE s.id = p_session;
  IF v_alive IS NOT TRUE THEN
    RAISE EXCEPTION 'the session is over' USING ERRCODE = 'LK101';
  ELSIF v_closed THEN
    RAISE EXCEPTION 'the ticket was closed before this request came' USING ERRCODE = 'LK102';
  END IF;
  IF v_fits THEN
    IF v_ours THEN
      o_what := 'granted';
      RETURN;
    END IF;
    -- A user's transaction has the name.
    UPDATE lockkeeper.lk_line SET id = NULL, session = NULL, last = greatest(last, fence)
     WHERE name = p_name;
    o_fence := NULL;
  END IF;
  SELECT * INTO f FROM lockkeeper.lk_settle(p_name, v_now, 0);
  o_news := f.o_news;
  SELECT seq, fence INTO v_own FROM lockkeeper.lk_standing
   WHERE name = p_name AND id = p_ticket AND session = p_session LIMIT 1;
  IF v_own.fence IS NOT NULL THEN
    o_what := 'granted';
    o_fence := v_own.fence;
    RETURN;
  END IF;
  SELECT * INTO v_line FROM lockkeeper.lk_line WHERE name = p_name;
  o_ahead := v_line.others + (v_line.id IS NOT NULL)::integer;
  o_recheck := lockkeeper.lk_micros(f.o_moves_at) - lockkeeper.lk_micros(v_now);
  IF v_own.seq IS NOT NULL THEN
    o_what := 'queued';
    SELECT count(*) + (v_line.id IS NOT NULL)::integer INTO o_ahead
      FROM lockkeeper.lk_ticket
     WHERE name = p_name AND seq >= v_line.lowest AND seq < v_own.seq;
  ELSE
    IF o_ahead > 0 AND v_line.capacity <> p_capacity THEN
      RAISE EXCEPTION 'the line has capacity %, not %', v_line.capacity, p_capacity
        USING ERRCODE = 'LK103', DETAIL = v_line.capacity::text;
    END IF;
    v_fits := NOT f.o_waits AND (o_ahead = 0 OR p_weight <= f.o_room);
    IF NOT v_fits AND NOT p_queue THEN
      o_what := 'busy';
    ELSIF o_ahead >= p_most THEN
      RAISE EXCEPTION '% tickets stand in the line already', p_most USING ERRCODE = 'LK104';
    ELSE
      UPDATE lockkeeper.lk_line
         SET last = greatest(last + 1, fence + 1, lockkeeper.lk_micros(clock_timestamp())),
             lowest = CASE WHEN others = 0 THEN greatest(last, fence) ELSE lowest END,
             others = others + 1, capacity = p_capacity
       WHERE name = p_name RETURNING last INTO o_fence;
      INSERT INTO lockkeeper.lk_ticket
        (name, seq, id, session, weight, capacity, fence, entered, granted, note)
      VALUES (p_name, o_fence, p_ticket, p_session, p_weight, p_capacity,
              CASE WHEN v_fits THEN o_fence END, v_now, CASE WHEN v_fits THEN v_now END, p_note);
      o_what := CASE WHEN v_fits THEN 'granted' ELSE 'queued' END;
    END IF;
  END IF;
  IF o_what <> 'granted' THEN
    o_fence := NULL;
    SELECT * INTO o_host, o_pid, o_program, o_note, o_held FROM lockkeeper.lk_holder(p_name, v_now);
  END IF;
END $$;

-- Locks a line's row, and says whether there is one.
CREATE OR REPLACE FUNCTION lockkeeper.lk_hold_line(p_name text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM lockkeeper.lk_line WHERE name = p_name FOR UPDATE;
  RETURN FOUND;
END $$;

-- Refuses to end a ticket while a transaction that has checked its fence is open.
CREATE OR REPLACE FUNCTION lockkeeper.lk_take_ticket(p_ticket bytea) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT pg_try_advisory_xact_lock(lockkeeper.lk_ticket_key(p_ticket)) THEN
    RAISE EXCEPTION 'a transaction that has checked this ticket''s fence is still open'
      USING ERRCODE = 'lock_not_available';
  END IF;
END $$;

-- Takes one ticket out of its line, whose row the caller has locked.
CREATE OR REPLACE FUNCTION lockkeeper.lk_remove(p_name text, p_seq bigint, p_ticket bytea)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM lockkeeper.lk_take_ticket(p_ticket);
  IF p_seq = 0 THEN
    UPDATE lockkeeper.lk_line
       SET id = NULL, session = NULL, hold_until = NULL, last = greatest(last, fence)
     WHERE name = p_name;
  ELSE
    DELETE FROM lockkeeper.lk_ticket WHERE name = p_name AND seq = p_seq;
    UPDATE lockkeeper.lk_line SET others = others - 1 WHERE name = p_name;
  END IF;
END $$;

-- Notes a ticket as closed for so many microseconds, so that an enter of it that comes late is refused. With the
-- line's row an enter of this ticket that has made it and is about to commit is waited for, and an enter that waits
-- for the row is told to look into lk_closed.
CREATE OR REPLACE FUNCTION lockkeeper.lk_close_ticket(
  p_name text, p_ticket bytea, p_session bytea, p_for bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_until timestamptz := clock_timestamp() + p_for * interval '1 microsecond';
BEGIN
  INSERT INTO lockkeeper.lk_line AS l (name, last, capacity, weight, note, closing)
  VALUES (p_name, lockkeeper.lk_micros(clock_timestamp()), 1, 1, '', v_until)
  ON CONFLICT (name) DO UPDATE SET closing = greatest(l.closing, excluded.closing);
  INSERT INTO lockkeeper.lk_closed AS c
  VALUES (p_ticket, p_session, v_until)
  ON CONFLICT (ticket, session) DO UPDATE SET until = excluded.until;
END $$;

-- Hands a line on, whose first ticket the caller has just taken out; answers as lk_leave does.
CREATE OR REPLACE FUNCTION lockkeeper.lk_pass_on(
  p_name text, OUT o_what text, OUT o_freed boolean, OUT o_news text[]
) LANGUAGE plpgsql AS $$
BEGIN
  o_what := 'released';
  SELECT NOT f.o_waits, f.o_news INTO o_freed, o_news
    FROM lockkeeper.lk_settle(p_name, clock_timestamp(), 0) f;
END $$;

-- Releases or withdraws a ticket and hands the line on: released, withdrawn or gone. o_freed says that
-- no ticket waits. p_keep keeps the lock closed for so many microseconds; p_stray notes the ticket as
-- closed for so many. Most tickets that come here stand in lk_ticket (leave_first.sql releases the others), so the
-- statements for these are as few as they can be: the one who waits next waits for them.
CREATE OR REPLACE FUNCTION lockkeeper.lk_leave(
  p_name text, p_ticket bytea, p_session bytea, p_keep bigint, p_stray bigint,
  OUT o_what text, OUT o_freed boolean, OUT o_news text[]
) LANGUAGE plpgsql AS $$
DECLARE
  v_line record;
  v_own record;
BEGIN
  IF current_setting('lock_timeout') = '0' THEN PERFORM lockkeeper.lk_bound(); END IF;
  IF p_stray > 0 THEN
    PERFORM lockkeeper.lk_close_ticket(p_name, p_ticket, p_session, p_stray);
  END IF;
  o_what := 'gone';
  o_freed := false;
  SELECT id = p_ticket AND session = p_session AS is_first, others, lowest INTO v_line
    FROM lockkeeper.lk_line WHERE name = p_name FOR UPDATE;
  IF NOT FOUND THEN
    RETURN;
  ELSIF v_line.is_first THEN
    o_what := 'released';
    IF p_keep > 0 THEN
      UPDATE lockkeeper.lk_line
         SET session = NULL, hold_until = clock_timestamp() + p_keep * interval '1 microsecond'
       WHERE name = p_name;
      RETURN;
    END IF;
    PERFORM lockkeeper.lk_remove(p_name, 0, p_ticket);
    o_freed := true;
    IF v_line.others > 0 THEN
      SELECT NOT f.o_waits, f.o_news INTO o_freed, o_news
        FROM lockkeeper.lk_settle(p_name, clock_timestamp(), 0) f;
    END IF;
    RETURN;
  END IF;
  -- OFFSET 0 as in lk_standing.
  SELECT seq, fence INTO v_own
    FROM (SELECT * FROM lockkeeper.lk_ticket
           WHERE name = p_name AND seq >= v_line.lowest OFFSET 0) t
   WHERE id = p_ticket AND session = p_session LIMIT 1;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  o_what := CASE WHEN v_own.fence IS NULL THEN 'withdrawn' ELSE 'released' END;
  IF p_keep > 0 AND v_own.fence IS NOT NULL THEN
    UPDATE lockkeeper.lk_ticket
       SET session = NULL, hold_until = clock_timestamp() + p_keep * interval '1 microsecond'
     WHERE name = p_name AND seq = v_own.seq;
    RETURN;
  END IF;
  PERFORM lockkeeper.lk_take_ticket(p_ticket);
  DELETE FROM lockkeeper.lk_ticket WHERE name = p_name AND seq = v_own.seq;
  SELECT NOT f.o_waits, f.o_news INTO o_freed, o_news
    FROM lockkeeper.lk_settle(p_name, clock_timestamp(), 1) f;
END $$;

-- Ends a ticket that may be of another session. o_channel is where its session listens.
CREATE OR REPLACE FUNCTION lockkeeper.lk_evict(
  p_name text, p_ticket bytea,
  OUT o_found boolean, OUT o_freed boolean, OUT o_channel text, OUT o_news text[]
) LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz;
  v_own record;
  f record;
BEGIN
  IF current_setting('lock_timeout') = '0' THEN PERFORM lockkeeper.lk_bound(); END IF;
  o_found := false;
  o_freed := false;
  IF NOT lockkeeper.lk_hold_line(p_name) THEN
    RETURN;
  END IF;
  v_now := clock_timestamp();
  SELECT seq, session, dead_at INTO v_own FROM lockkeeper.lk_standing
   WHERE name = p_name AND id = p_ticket LIMIT 1;
  IF FOUND AND v_own.dead_at > v_now THEN
    o_found := true;
    PERFORM lockkeeper.lk_remove(p_name, v_own.seq, p_ticket);
    IF v_own.session IS NOT NULL THEN
      INSERT INTO lockkeeper.lk_evicted VALUES (v_own.session, p_ticket);
      SELECT channel INTO o_channel FROM lockkeeper.lk_session WHERE id = v_own.session;
    END IF;
  END IF;
  SELECT * INTO f FROM lockkeeper.lk_settle(p_name, v_now, 0);
  o_freed := NOT f.o_waits;
  o_news := f.o_news;
END $$;

-- How tickets of one session stand: granted, queued or gone; or due, if the line must be settled by
-- lk_stand before that can be said. Reads only.
CREATE OR REPLACE FUNCTION lockkeeper.lk_poll(p_session bytea, p_names text[], p_tickets bytea[])
RETURNS TABLE(
  o_what text, o_fence bigint, o_ahead integer, o_recheck bigint,
  o_host text, o_pid bigint, o_program text, o_note bytea, o_held bigint
) LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_own record;
  v_room bigint;
  v_moves timestamptz;
  r record;
BEGIN
  FOR i IN 1 .. coalesce(array_length(p_names, 1), 0) LOOP
    SELECT seq, fence, capacity INTO v_own FROM lockkeeper.lk_standing
     WHERE name = p_names[i] AND id = p_tickets[i] AND session = p_session LIMIT 1;
    o_ahead := NULL; o_recheck := NULL; o_host := NULL; o_pid := NULL; o_program := NULL;
    o_note := NULL; o_held := NULL; o_fence := v_own.fence;
    IF v_own.seq IS NULL THEN
      o_what := 'gone';
    ELSIF v_own.fence IS NOT NULL THEN
      o_what := 'granted';
    ELSE
      o_what := 'due';
      v_room := v_own.capacity;
      v_moves := NULL;
      FOR r IN SELECT s.weight, s.fence, s.dead_at FROM lockkeeper.lk_standing s
                WHERE s.name = p_names[i] ORDER BY s.seq LIMIT 1000
      LOOP
        EXIT WHEN r.dead_at <= v_now;
        IF r.weight > v_room THEN
          o_what := 'queued';
          EXIT;
        END IF;
        EXIT WHEN r.fence IS NULL;
        v_room := v_room - r.weight;
        v_moves := least(v_moves, r.dead_at);
      END LOOP;
      IF o_what = 'queued' THEN
        SELECT count(*) INTO o_ahead FROM lockkeeper.lk_standing
         WHERE name = p_names[i] AND seq < v_own.seq;
        o_recheck := lockkeeper.lk_micros(v_moves) - lockkeeper.lk_micros(v_now);
        SELECT * INTO o_host, o_pid, o_program, o_note, o_held
          FROM lockkeeper.lk_holder(p_names[i], v_now);
      END IF;
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Settles a line and says how one ticket stands in it.
CREATE OR REPLACE FUNCTION lockkeeper.lk_stand(
  p_name text, p_ticket bytea, p_session bytea,
  OUT o_what text, OUT o_fence bigint, OUT o_ahead integer, OUT o_recheck bigint,
  OUT o_host text, OUT o_pid bigint, OUT o_program text, OUT o_note bytea, OUT o_held bigint,
  OUT o_news text[]
) LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz;
  v_own record;
  f record;
BEGIN
  IF current_setting('lock_timeout') = '0' THEN PERFORM lockkeeper.lk_bound(); END IF;
  o_what := 'gone';
  IF NOT lockkeeper.lk_hold_line(p_name) THEN
    RETURN;
  END IF;
  v_now := clock_timestamp();
  SELECT * INTO f FROM lockkeeper.lk_settle(p_name, v_now, 0);
  o_news := f.o_news;
  SELECT seq, fence INTO v_own FROM lockkeeper.lk_standing
   WHERE name = p_name AND id = p_ticket AND session = p_session LIMIT 1;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  o_fence := v_own.fence;
  o_what := CASE WHEN o_fence IS NULL THEN 'queued' ELSE 'granted' END;
  IF o_what = 'queued' THEN
    SELECT count(*) INTO o_ahead FROM lockkeeper.lk_standing
     WHERE name = p_name AND seq < v_own.seq;
    o_recheck := lockkeeper.lk_micros(f.o_moves_at) - lockkeeper.lk_micros(v_now);
    SELECT * INTO o_host, o_pid, o_program, o_note, o_held FROM lockkeeper.lk_holder(p_name, v_now);
  END IF;
END $$;

-- The ticket's place in its line, whose row the caller has locked, if its session holds it now.
CREATE OR REPLACE FUNCTION lockkeeper.lk_held(
  p_name text, p_ticket bytea, p_session bytea,
  OUT o_seq bigint, OUT o_fence bigint, OUT o_exclusive boolean, OUT o_note_edit bigint,
  OUT o_cell_edit bigint
) LANGUAGE plpgsql AS $$
BEGIN
  SELECT seq, fence, weight = capacity, note_edit, cell_edit
    INTO o_seq, o_fence, o_exclusive, o_note_edit, o_cell_edit FROM lockkeeper.lk_standing
   WHERE name = p_name AND id = p_ticket AND session = p_session AND fence IS NOT NULL
     AND dead_at > clock_timestamp() AND expires > '-infinity' LIMIT 1;
END $$;

-- Changes the note of a held ticket; says whether it is held.
CREATE OR REPLACE FUNCTION lockkeeper.lk_annotate(
  p_name text, p_ticket bytea, p_session bytea, p_edit bigint, p_note bytea
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  h record;
BEGIN
  IF current_setting('lock_timeout') = '0' THEN PERFORM lockkeeper.lk_bound(); END IF;
  PERFORM lockkeeper.lk_hold_line(p_name);
  SELECT * INTO h FROM lockkeeper.lk_held(p_name, p_ticket, p_session);
  IF h.o_seq IS NULL THEN
    RETURN false;
  ELSIF p_edit <= h.o_note_edit THEN
    RETURN true;
  ELSIF h.o_seq = 0 THEN
    UPDATE lockkeeper.lk_line SET note = p_note, note_edit = p_edit WHERE name = p_name;
  ELSE
    UPDATE lockkeeper.lk_ticket SET note = p_note, note_edit = p_edit
     WHERE name = p_name AND seq = h.o_seq;
  END IF;
  RETURN true;
END $$;

-- Writes (or with NULL removes) the value that belongs to a name under its exclusive grant; says
-- whether the ticket has it.
CREATE OR REPLACE FUNCTION lockkeeper.lk_write(
  p_name text, p_ticket bytea, p_session bytea, p_edit bigint, p_bytes bytea
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  h record;
BEGIN
  IF current_setting('lock_timeout') = '0' THEN PERFORM lockkeeper.lk_bound(); END IF;
  PERFORM lockkeeper.lk_hold_line(p_name);
  SELECT * INTO h FROM lockkeeper.lk_held(p_name, p_ticket, p_session);
  IF h.o_seq IS NULL OR NOT h.o_exclusive THEN
    RETURN false;
  ELSIF p_edit <= h.o_cell_edit THEN
    RETURN true;
  END IF;
  IF p_bytes IS NULL THEN
    DELETE FROM lockkeeper.lk_cell WHERE name = p_name;
  ELSE
    INSERT INTO lockkeeper.lk_cell VALUES (p_name, p_bytes, h.o_fence)
    ON CONFLICT (name) DO UPDATE SET bytes = excluded.bytes, fence = excluded.fence;
  END IF;
  IF h.o_seq = 0 THEN
    UPDATE lockkeeper.lk_line SET cell_edit = p_edit WHERE name = p_name;
  ELSE
    UPDATE lockkeeper.lk_ticket SET cell_edit = p_edit WHERE name = p_name AND seq = h.o_seq;
  END IF;
  RETURN true;
END $$;

-- Is this grant held now?
CREATE OR REPLACE FUNCTION lockkeeper.lk_check(
  p_name text, p_ticket bytea, p_fence bigint, p_weight integer, p_capacity integer
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (SELECT FROM lockkeeper.lk_standing
   WHERE name = p_name AND id = p_ticket AND session IS NOT NULL AND fence = p_fence
     AND weight = p_weight AND capacity = p_capacity AND dead_at > clock_timestamp()
     AND expires > '-infinity');
END $$;

-- Lines with their living tickets, in order: up to so many whose names lie between two and come after
-- a third. OFFSET 0 keeps the planner from joining all lines with all tickets: each line's tickets are looked up by its
-- name, and a line that is idle costs one comparison.
CREATE OR REPLACE FUNCTION lockkeeper.lk_look(p_from text, p_to text, p_after text, p_most integer)
RETURNS TABLE(
  o_name text, o_id bytea, o_weight integer, o_capacity integer, o_fence bigint, o_note bytea,
  o_entered bigint, o_granted bigint, o_ends bigint, o_host text, o_pid bigint, o_program text
) LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY
  WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS at),
  names AS (
    SELECT l.name FROM lockkeeper.lk_line l, moment
     WHERE l.name >= p_from AND l.name <= p_to AND l.name > p_after
       AND (l.id IS NOT NULL OR l.others > 0)
       AND EXISTS (SELECT FROM lockkeeper.lk_standing s
                    WHERE s.name = l.name AND s.dead_at > moment.at OFFSET 0)
     ORDER BY l.name LIMIT p_most
  )
  SELECT s.name, s.id, s.weight, s.capacity, s.fence, s.note,
         lockkeeper.lk_micros(m.at) - lockkeeper.lk_micros(s.entered),
         lockkeeper.lk_micros(m.at) - lockkeeper.lk_micros(s.granted),
         lockkeeper.lk_micros(s.dead_at) - lockkeeper.lk_micros(m.at),
         s.host, s.pid, s.program
    FROM names n, moment m,
         LATERAL (SELECT * FROM lockkeeper.lk_standing t WHERE t.name = n.name OFFSET 0) s
   WHERE s.dead_at > m.at ORDER BY s.name, s.seq;
END $$;
