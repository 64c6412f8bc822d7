-- The schema as its first layout made it, kept to bring it up to date in a test. Never change it.
-- The tables. All time is the server's clock.
--
-- A line's first ticket, if it was granted when it came to an empty line, stands in the line's own
-- row; all others stand in lk_ticket, behind it. So a lock that nobody else wants is one row, updated
-- in place twice, as cheap as a lock table can be.

CREATE SCHEMA IF NOT EXISTS lockkeeper;

-- What this schema is: the layout's number, a random identity, and when leftovers were last cleared.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_meta(
  id     integer PRIMARY KEY CHECK (id = 1),
  layout integer NOT NULL,
  store  bytea   NOT NULL CHECK (length(store) = 8),
  swept  timestamptz NOT NULL DEFAULT '-infinity'
);

-- A session lives until expires, and its granted tickets stand until dead_at, which is the lock-delay
-- later. expires = -infinity says that it was ended: it is never renewed again. The row stays a while
-- longer, so that a request under way cannot leave a ticket that nobody clears away.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_session(
  id         bytea PRIMARY KEY,
  ttl        interval    NOT NULL,
  lock_delay interval    NOT NULL,
  expires    timestamptz NOT NULL,
  dead_at    timestamptz NOT NULL,
  channel    text    NOT NULL,
  host       text    NOT NULL,
  pid        bigint  NOT NULL,
  program    text    NOT NULL
) WITH (fillfactor = 50);

-- A name: the last number it gave out, how many tickets stand in lk_ticket, and its first ticket.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_line(
  name       text COLLATE "C" PRIMARY KEY,
  last       bigint  NOT NULL,
  others     integer NOT NULL DEFAULT 0,
  capacity   integer NOT NULL,
  id         bytea,
  session    bytea,
  weight     integer NOT NULL,
  fence      bigint,
  entered    timestamptz,
  hold_until timestamptz,
  note       bytea   NOT NULL,
  note_edit  bigint  NOT NULL DEFAULT 0,
  cell_edit  bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- A place in a line. session is NULL for a hold that has outlived its session, until hold_until.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_ticket(
  name       text COLLATE "C" NOT NULL,
  seq        bigint  NOT NULL,
  id         bytea   NOT NULL,
  session    bytea,
  weight     integer NOT NULL,
  capacity   integer NOT NULL,
  fence      bigint,
  entered    timestamptz NOT NULL,
  granted    timestamptz,
  hold_until timestamptz,
  note       bytea   NOT NULL,
  note_edit  bigint  NOT NULL DEFAULT 0,
  cell_edit  bigint  NOT NULL DEFAULT 0,
  PRIMARY KEY (name, seq)
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS lk_ticket_session ON lockkeeper.lk_ticket(session);

-- Tickets that were left while a copy of their enter may still be under way.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_closed(
  ticket  bytea NOT NULL,
  session bytea NOT NULL,
  until   timestamptz NOT NULL,
  PRIMARY KEY (ticket, session)
);
CREATE INDEX IF NOT EXISTS lk_closed_until ON lockkeeper.lk_closed(until);

-- Tickets that somebody else has ended. A session's version is their number.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_evicted(
  session bytea NOT NULL,
  ticket  bytea NOT NULL
);
CREATE INDEX IF NOT EXISTS lk_evicted_session ON lockkeeper.lk_evicted(session);

-- The values that belong to names.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_cell(
  name  text COLLATE "C" PRIMARY KEY,
  bytes bytea  NOT NULL,
  fence bigint NOT NULL
);

-- Every ticket, wherever it stands, with the time at which it ends unless its session is renewed.
CREATE OR REPLACE VIEW lockkeeper.lk_standing AS
SELECT l.name, 0::bigint AS seq, l.id, l.session, l.weight, l.capacity, l.fence, l.entered,
       l.entered AS granted, l.hold_until, l.note, l.note_edit, l.cell_edit,
       coalesce(l.hold_until, s.dead_at, '-infinity') AS dead_at,
       s.host, s.pid, s.program
  FROM lockkeeper.lk_line l LEFT JOIN lockkeeper.lk_session s ON s.id = l.session
 WHERE l.id IS NOT NULL
UNION ALL
SELECT t.name, t.seq, t.id, t.session, t.weight, t.capacity, t.fence, t.entered,
       t.granted, t.hold_until, t.note, t.note_edit, t.cell_edit,
       coalesce(t.hold_until, CASE WHEN t.fence IS NULL THEN s.expires ELSE s.dead_at END,
                '-infinity') AS dead_at,
       s.host, s.pid, s.program
  FROM lockkeeper.lk_ticket t LEFT JOIN lockkeeper.lk_session s ON s.id = t.session;
-- The operations on one line. Each is one call, one transaction, one round trip.
--
-- Order of locks: the line's row, then the rows of sessions that are found dead, then nothing. No
-- transaction touches a second line while it holds a session's row, save the sweep, which gives up
-- when it would have to wait. A renewal takes its session's row alone.
--
-- Beside the rows there are two advisory locks that end with their transaction. A user's transaction
-- that has checked a fence shares the one of its ticket: who wants to end that ticket must have it
-- alone, and is told "busy" (55P03) until then. A user's transaction that holds a name as its own
-- lock (lk_lock) has the one of the name alone: who grants must share it, and else grants nothing.
--
-- Refusals are errors, so that they write nothing:
--   LK001 the session is over · LK002 the ticket was closed · LK003 another capacity (in DETAIL)
--   LK004 the line is full · LK005 the request came too late (the server's clock in DETAIL)

CREATE OR REPLACE FUNCTION lockkeeper.lk_micros(p_at timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT (extract(epoch FROM p_at) * 1000000)::bigint $$;

CREATE OR REPLACE FUNCTION lockkeeper.lk_key(p_what text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended(p_what, hashtext('lockkeeper.')) $$;

CREATE OR REPLACE FUNCTION lockkeeper.lk_ticket_key(p_ticket bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT lockkeeper.lk_key('ticket/' || encode(p_ticket, 'hex')) $$;

CREATE OR REPLACE FUNCTION lockkeeper.lk_name_key(p_name text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT lockkeeper.lk_key('name/' || p_name) $$;

-- Has this ticket's time passed? Then its session is ended in the same transaction: a renewal that
-- was faster makes the ticket live, one that is slower finds its session over.
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
    UPDATE lockkeeper.lk_session SET expires = '-infinity'
     WHERE id = p_session AND expires <= p_now;
    RETURN FOUND;
  END IF;
  RETURN true;
END $$;

-- Brings a line up to date, whose row the caller has locked: the dead fall out, the longest prefix
-- that fits is granted. Reads no further than the first live ticket that must wait.
--
-- o_room is what a newcomer could have, 0 if somebody waits; o_moves_at is when the line can move
-- without anybody writing; o_news is who has been granted: channel, ticket, fence, three by three.
CREATE OR REPLACE FUNCTION lockkeeper.lk_settle(
  p_name text, p_now timestamptz,
  OUT o_room integer, OUT o_waits boolean, OUT o_moves_at timestamptz, OUT o_news text[]
) LANGUAGE plpgsql AS $$
DECLARE
  l lockkeeper.lk_line;
  r record;
  v_ends timestamptz;
  v_last bigint;
  v_gone integer := 0;
  v_head boolean;
BEGIN
  SELECT * INTO l FROM lockkeeper.lk_line WHERE name = p_name;
  o_room := l.capacity;
  o_waits := false;
  o_news := '{}';
  v_last := l.last;
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
  ELSIF l.others > 0 THEN
    FOR r IN
      SELECT t.seq, t.id, t.session, t.weight, t.fence, t.hold_until, s.expires, s.dead_at, s.channel
        FROM lockkeeper.lk_ticket t LEFT JOIN lockkeeper.lk_session s ON s.id = t.session
       WHERE t.name = p_name ORDER BY t.seq
    LOOP
      v_ends := coalesce(r.hold_until, CASE WHEN r.fence IS NULL THEN r.expires ELSE r.dead_at END,
                         '-infinity');
      IF v_ends <= p_now
         AND lockkeeper.lk_bury(r.session, r.hold_until, r.fence IS NOT NULL, p_now)
         AND (r.fence IS NULL OR pg_try_advisory_xact_lock(lockkeeper.lk_ticket_key(r.id))) THEN
        DELETE FROM lockkeeper.lk_ticket WHERE name = p_name AND seq = r.seq;
        v_gone := v_gone + 1;
      ELSIF r.weight <= o_room THEN
        o_room := o_room - r.weight;
        o_moves_at := least(o_moves_at, greatest(v_ends, p_now + interval '5 ms'));
        IF r.fence IS NULL THEN
          v_last := greatest(v_last + 1, lockkeeper.lk_micros(p_now));
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
  IF v_gone > 0 OR v_last > l.last OR v_head <> (l.id IS NOT NULL) THEN
    UPDATE lockkeeper.lk_line
       SET last = v_last, others = others - v_gone,
           id = CASE WHEN v_head THEN id END, session = CASE WHEN v_head THEN session END,
           hold_until = CASE WHEN v_head THEN hold_until END
     WHERE name = p_name;
  END IF;
END $$;

-- Who holds the line, for those who wait.
CREATE OR REPLACE FUNCTION lockkeeper.lk_holder(
  p_name text, p_now timestamptz,
  OUT o_host text, OUT o_pid bigint, OUT o_program text, OUT o_note bytea, OUT o_held bigint
) LANGUAGE sql STABLE AS $$
  SELECT host, pid, program, note, lockkeeper.lk_micros(p_now) - lockkeeper.lk_micros(granted)
    FROM lockkeeper.lk_standing
   WHERE name = p_name AND fence IS NOT NULL AND host IS NOT NULL ORDER BY seq LIMIT 1
$$;

-- Enters a line. Uncontended it is one update in place.
--
-- o_what is granted, queued or busy. p_until is the moment, in microseconds of the server's clock,
-- after which the request must have no effect.
CREATE OR REPLACE FUNCTION lockkeeper.lk_enter(
  p_name text, p_ticket bytea, p_session bytea, p_weight integer, p_capacity integer,
  p_queue boolean, p_note bytea, p_until bigint, p_most integer,
  OUT o_what text, OUT o_fence bigint, OUT o_ahead integer, OUT o_recheck bigint,
  OUT o_host text, OUT o_pid bigint, OUT o_program text, OUT o_note bytea, OUT o_held bigint,
  OUT o_news text[]
) LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
  -- Before the wait for the row; it only has to be no less than the last number of a line that was
  -- forgotten for being idle.
  v_now timestamptz := clock_timestamp();
  v_number bigint := lockkeeper.lk_micros(v_now);
  v_fits boolean;
  v_alive boolean;
  v_closed boolean;
  v_own record;
  f record;
  v_line lockkeeper.lk_line;
BEGIN
  INSERT INTO lockkeeper.lk_line AS l
    (name, last, capacity, id, session, weight, fence, entered, note)
  VALUES (p_name, v_number, p_capacity, p_ticket, p_session, p_weight, v_number, v_now, p_note)
  ON CONFLICT (name) DO UPDATE SET
    last = greatest(l.last + 1, v_number), capacity = p_capacity, id = p_ticket,
    session = p_session, weight = p_weight, fence = greatest(l.last + 1, v_number),
    entered = v_now, hold_until = NULL, note = p_note, note_edit = 0, cell_edit = 0
    WHERE l.id IS NULL AND l.others = 0
  RETURNING last INTO o_fence;
  v_fits := FOUND;
  v_now := clock_timestamp();
  IF p_until < lockkeeper.lk_micros(v_now) THEN
    RAISE EXCEPTION 'the request came too late'
      USING ERRCODE = 'LK005', DETAIL = lockkeeper.lk_micros(v_now)::text;
  END IF;
  SELECT s.expires > v_now,
         EXISTS (SELECT FROM lockkeeper.lk_closed WHERE ticket = p_ticket AND session = p_session)
    INTO v_alive, v_closed FROM lockkeeper.lk_session s WHERE s.id = p_session;
  IF v_alive IS NOT TRUE THEN
    RAISE EXCEPTION 'the session is over' USING ERRCODE = 'LK001';
  ELSIF v_closed THEN
    RAISE EXCEPTION 'the ticket was closed before this request came' USING ERRCODE = 'LK002';
  END IF;
  IF v_fits THEN
    IF pg_try_advisory_xact_lock_shared(lockkeeper.lk_name_key(p_name)) THEN
      o_what := 'granted';
      RETURN;
    END IF;
    -- A user's transaction has the name.
    UPDATE lockkeeper.lk_line SET id = NULL, session = NULL WHERE name = p_name;
    o_fence := NULL;
  END IF;
  SELECT * INTO f FROM lockkeeper.lk_settle(p_name, v_now);
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
      FROM lockkeeper.lk_ticket WHERE name = p_name AND seq < v_own.seq;
  ELSE
    IF o_ahead > 0 AND v_line.capacity <> p_capacity THEN
      RAISE EXCEPTION 'the line has capacity %, not %', v_line.capacity, p_capacity
        USING ERRCODE = 'LK003', DETAIL = v_line.capacity::text;
    END IF;
    v_fits := NOT f.o_waits AND (o_ahead = 0 OR p_weight <= f.o_room);
    IF NOT v_fits AND NOT p_queue THEN
      o_what := 'busy';
    ELSIF o_ahead >= p_most THEN
      RAISE EXCEPTION '% tickets stand in the line already', p_most USING ERRCODE = 'LK004';
    ELSE
      UPDATE lockkeeper.lk_line
         SET last = greatest(last + 1, lockkeeper.lk_micros(v_now)), others = others + 1,
             capacity = p_capacity
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

-- Takes one ticket out of its line, whose row the caller has locked; refused while a transaction that
-- has checked its fence is open.
CREATE OR REPLACE FUNCTION lockkeeper.lk_remove(p_name text, p_seq bigint, p_ticket bytea)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF NOT pg_try_advisory_xact_lock(lockkeeper.lk_ticket_key(p_ticket)) THEN
    RAISE EXCEPTION 'a transaction that has checked this ticket''s fence is still open'
      USING ERRCODE = 'lock_not_available';
  ELSIF p_seq = 0 THEN
    UPDATE lockkeeper.lk_line SET id = NULL, session = NULL, hold_until = NULL WHERE name = p_name;
  ELSE
    DELETE FROM lockkeeper.lk_ticket WHERE name = p_name AND seq = p_seq;
    UPDATE lockkeeper.lk_line SET others = others - 1 WHERE name = p_name;
  END IF;
END $$;

-- Releases or withdraws a ticket and hands the line on: released, withdrawn or gone. o_freed says that
-- nobody waits. p_keep keeps the lock closed for so many microseconds; p_stray notes the ticket as
-- closed for so many.
CREATE OR REPLACE FUNCTION lockkeeper.lk_leave(
  p_name text, p_ticket bytea, p_session bytea, p_keep bigint, p_stray bigint,
  OUT o_what text, OUT o_freed boolean, OUT o_news text[]
) LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
  v_others integer;
  v_own record;
  f record;
BEGIN
  IF p_stray > 0 THEN
    INSERT INTO lockkeeper.lk_closed AS c
    VALUES (p_ticket, p_session, clock_timestamp() + p_stray * interval '1 microsecond')
    ON CONFLICT (ticket, session) DO UPDATE SET until = excluded.until;
  END IF;
  IF p_keep = 0 THEN
    UPDATE lockkeeper.lk_line SET id = NULL, session = NULL, hold_until = NULL
     WHERE name = p_name AND id = p_ticket AND session = p_session RETURNING others INTO v_others;
    IF FOUND THEN
      IF NOT pg_try_advisory_xact_lock(lockkeeper.lk_ticket_key(p_ticket)) THEN
        RAISE EXCEPTION 'a transaction that has checked this ticket''s fence is still open'
          USING ERRCODE = 'lock_not_available';
      END IF;
      o_what := 'released';
      o_freed := v_others = 0;
      IF NOT o_freed THEN
        SELECT * INTO f FROM lockkeeper.lk_settle(p_name, clock_timestamp());
        o_freed := NOT f.o_waits;
        o_news := f.o_news;
      END IF;
      RETURN;
    END IF;
  END IF;
  o_what := 'gone';
  o_freed := false;
  IF NOT lockkeeper.lk_hold_line(p_name) THEN
    RETURN;
  END IF;
  SELECT seq, fence INTO v_own FROM lockkeeper.lk_standing
   WHERE name = p_name AND id = p_ticket AND session = p_session LIMIT 1;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  o_what := CASE WHEN v_own.fence IS NULL THEN 'withdrawn' ELSE 'released' END;
  IF p_keep > 0 AND v_own.fence IS NOT NULL THEN
    IF v_own.seq = 0 THEN
      UPDATE lockkeeper.lk_line
         SET session = NULL, hold_until = clock_timestamp() + p_keep * interval '1 microsecond'
       WHERE name = p_name;
    ELSE
      UPDATE lockkeeper.lk_ticket
         SET session = NULL, hold_until = clock_timestamp() + p_keep * interval '1 microsecond'
       WHERE name = p_name AND seq = v_own.seq;
    END IF;
    RETURN;
  END IF;
  PERFORM lockkeeper.lk_remove(p_name, v_own.seq, p_ticket);
  SELECT * INTO f FROM lockkeeper.lk_settle(p_name, clock_timestamp());
  o_freed := NOT f.o_waits;
  o_news := f.o_news;
END $$;

-- Ends somebody else's ticket. o_channel is where its session listens.
CREATE OR REPLACE FUNCTION lockkeeper.lk_evict(
  p_name text, p_ticket bytea,
  OUT o_found boolean, OUT o_freed boolean, OUT o_channel text, OUT o_news text[]
) LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
  v_now timestamptz;
  v_own record;
  f record;
BEGIN
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
  SELECT * INTO f FROM lockkeeper.lk_settle(p_name, v_now);
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
) LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
  v_now timestamptz;
  v_own record;
  f record;
BEGIN
  o_what := 'gone';
  IF NOT lockkeeper.lk_hold_line(p_name) THEN
    RETURN;
  END IF;
  v_now := clock_timestamp();
  SELECT * INTO f FROM lockkeeper.lk_settle(p_name, v_now);
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
) LANGUAGE sql AS $$
  SELECT seq, fence, weight = capacity, note_edit, cell_edit FROM lockkeeper.lk_standing
   WHERE name = p_name AND id = p_ticket AND session = p_session AND fence IS NOT NULL
     AND dead_at > clock_timestamp() LIMIT 1
$$;

-- Changes the note of a held ticket; says whether it is held.
CREATE OR REPLACE FUNCTION lockkeeper.lk_annotate(
  p_name text, p_ticket bytea, p_session bytea, p_edit bigint, p_note bytea
) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
  h record;
BEGIN
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
) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
  h record;
BEGIN
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
) RETURNS boolean LANGUAGE sql AS $$
  SELECT EXISTS (SELECT FROM lockkeeper.lk_standing
   WHERE name = p_name AND id = p_ticket AND session IS NOT NULL AND fence = p_fence
     AND weight = p_weight AND capacity = p_capacity AND dead_at > clock_timestamp())
$$;

-- Lines with their living tickets, in order: up to so many whose names lie between two and come after
-- a third.
CREATE OR REPLACE FUNCTION lockkeeper.lk_look(p_from text, p_to text, p_after text, p_most integer)
RETURNS TABLE(
  o_name text, o_id bytea, o_weight integer, o_capacity integer, o_fence bigint, o_note bytea,
  o_entered bigint, o_granted bigint, o_ends bigint, o_host text, o_pid bigint, o_program text
) LANGUAGE sql AS $$
  WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS at),
  names AS (
    SELECT l.name FROM lockkeeper.lk_line l, moment
     WHERE l.name >= p_from AND l.name <= p_to AND l.name > p_after
       AND EXISTS (SELECT FROM lockkeeper.lk_standing s
                    WHERE s.name = l.name AND s.dead_at > moment.at)
     ORDER BY l.name LIMIT p_most
  )
  SELECT s.name, s.id, s.weight, s.capacity, s.fence, s.note,
         lockkeeper.lk_micros(m.at) - lockkeeper.lk_micros(s.entered),
         lockkeeper.lk_micros(m.at) - lockkeeper.lk_micros(s.granted),
         lockkeeper.lk_micros(s.dead_at) - lockkeeper.lk_micros(m.at),
         s.host, s.pid, s.program
    FROM names n JOIN lockkeeper.lk_standing s USING (name), moment m
   WHERE s.dead_at > m.at ORDER BY s.name, s.seq
$$;
-- Sessions: opened, renewed, closed, and cleared away when nobody comes back for them.

-- Opens a session, or answers with the terms of the one that is open. Times are microseconds.
CREATE OR REPLACE FUNCTION lockkeeper.lk_open(
  p_session bytea, p_ttl bigint, p_lock_delay bigint, p_channel text,
  p_host text, p_pid bigint, p_program text,
  OUT o_now bigint, OUT o_ttl bigint, OUT o_lock_delay bigint
) LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_ttl interval := p_ttl * interval '1 microsecond';
  v_delay interval := p_lock_delay * interval '1 microsecond';
BEGIN
  INSERT INTO lockkeeper.lk_session
  VALUES (p_session, v_ttl, v_delay, v_now + v_ttl, v_now + v_ttl + v_delay,
          p_channel, p_host, p_pid, p_program)
  ON CONFLICT DO NOTHING;
  SELECT (extract(epoch FROM ttl) * 1000000)::bigint,
         (extract(epoch FROM lock_delay) * 1000000)::bigint
    INTO o_ttl, o_lock_delay FROM lockkeeper.lk_session WHERE id = p_session;
  o_now := lockkeeper.lk_micros(v_now);
END $$;

-- Renews a session. o_version counts its evictions; NULL says that the session is over. It takes no
-- lock but that of its own row.
CREATE OR REPLACE FUNCTION lockkeeper.lk_renew(
  p_session bytea, OUT o_now bigint, OUT o_version bigint
) LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
BEGIN
  -- The clock is read again behind the wait for the row, if there is one.
  UPDATE lockkeeper.lk_session
     SET expires = clock_timestamp() + ttl, dead_at = clock_timestamp() + ttl + lock_delay
   WHERE id = p_session AND expires > clock_timestamp();
  IF FOUND THEN
    SELECT count(*) INTO o_version FROM lockkeeper.lk_evicted WHERE session = p_session;
  END IF;
  o_now := lockkeeper.lk_micros(clock_timestamp());
END $$;

-- Ends a session at once. Its tickets are dead from now on; lk_clear takes them away.
CREATE OR REPLACE FUNCTION lockkeeper.lk_close(p_session bytea) RETURNS void
LANGUAGE sql AS $$
  UPDATE lockkeeper.lk_session
     SET expires = '-infinity', dead_at = least(dead_at, clock_timestamp())
   WHERE id = p_session
$$;

-- Takes tickets of an ended session out of their lines, in the order of the names: those given, and up
-- to so many others. o_more says that it has to be called again.
CREATE OR REPLACE FUNCTION lockkeeper.lk_clear(
  p_session bytea, p_names text[], p_most integer,
  OUT o_more boolean, OUT o_freed text[], OUT o_news text[]
) LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
  v_name text;
  v_seen integer := 0;
  f record;
BEGIN
  o_freed := '{}';
  o_news := '{}';
  FOR v_name IN
    SELECT n COLLATE "C" AS name FROM unnest(p_names) AS n
    UNION SELECT name FROM (SELECT DISTINCT name FROM lockkeeper.lk_ticket
                             WHERE session = p_session LIMIT p_most) t
    ORDER BY name
  LOOP
    v_seen := v_seen + 1;
    CONTINUE WHEN NOT lockkeeper.lk_hold_line(v_name);
    -- Those at the end of the line too, where settling does not look.
    WITH gone AS (
      DELETE FROM lockkeeper.lk_ticket
       WHERE name = v_name AND session = p_session AND fence IS NULL RETURNING 1
    )
    UPDATE lockkeeper.lk_line SET others = others - (SELECT count(*) FROM gone)
     WHERE name = v_name AND (SELECT count(*) FROM gone) > 0;
    SELECT * INTO f FROM lockkeeper.lk_settle(v_name, clock_timestamp());
    o_news := o_news || f.o_news;
    IF NOT f.o_waits THEN
      o_freed := o_freed || v_name;
    END IF;
  END LOOP;
  o_more := v_seen >= p_most;
END $$;

-- Clears a few leftovers away, at most once a second however many ask: notes of closed tickets,
-- sessions that have been dead for a minute, and lines that have been idle for p_idle microseconds,
-- looked for behind the name p_after. o_next is where to go on. o_sessions are dead sessions that have
-- left tickets in lines: lk_clear is for them.
CREATE OR REPLACE FUNCTION lockkeeper.lk_sweep(
  p_after text, p_idle bigint, p_most integer,
  OUT o_next text, OUT o_sessions bytea[]
) LANGUAGE plpgsql SET lock_timeout = '10ms' AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  o_next := p_after;
  o_sessions := '{}';
  PERFORM FROM lockkeeper.lk_meta WHERE swept < v_now - interval '1 second' FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  UPDATE lockkeeper.lk_meta SET swept = v_now;
  DELETE FROM lockkeeper.lk_closed WHERE (ticket, session) IN (
    SELECT ticket, session FROM lockkeeper.lk_closed WHERE until <= v_now LIMIT p_most);
  SELECT coalesce(array_agg(id), '{}') INTO o_sessions FROM (
    SELECT s.id FROM lockkeeper.lk_session s
     WHERE s.dead_at <= v_now
       AND EXISTS (SELECT FROM lockkeeper.lk_ticket t WHERE t.session = s.id)
     LIMIT 4) dead;
  WITH gone AS (
    DELETE FROM lockkeeper.lk_session WHERE id IN (
      SELECT s.id FROM lockkeeper.lk_session s
       WHERE s.dead_at <= v_now - interval '1 minute'
         AND NOT EXISTS (SELECT FROM lockkeeper.lk_ticket t WHERE t.session = s.id)
       LIMIT p_most FOR UPDATE SKIP LOCKED)
    RETURNING id
  )
  DELETE FROM lockkeeper.lk_evicted WHERE session IN (SELECT id FROM gone);
  SELECT max(name) INTO o_next FROM (
    SELECT name FROM lockkeeper.lk_line WHERE name > p_after ORDER BY name LIMIT p_most) page;
  DELETE FROM lockkeeper.lk_line WHERE name IN (
    SELECT l.name FROM lockkeeper.lk_line l
     WHERE l.name > p_after AND l.name <= o_next AND l.others = 0
       AND l.last < lockkeeper.lk_micros(v_now) - p_idle
       AND NOT EXISTS (SELECT FROM lockkeeper.lk_standing s
                        WHERE s.name = l.name AND s.dead_at > v_now)
     FOR UPDATE OF l SKIP LOCKED);
  o_next := coalesce(o_next, '');
END $$;
INSERT INTO lockkeeper.lk_meta(id, layout, store) VALUES (1, 1, '\x0102030405060708');
