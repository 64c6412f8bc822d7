-- Sessions: opened, renewed, closed, and cleared away when their owners are gone.

-- Opens a session, or answers with the terms of the one that is open. Times are microseconds. o_store is
-- whose data this is now.
CREATE OR REPLACE FUNCTION lockkeeper.lk_open(
  p_session bytea, p_ttl bigint, p_lock_delay bigint, p_channel text,
  p_host text, p_pid bigint, p_program text,
  OUT o_now bigint, OUT o_ttl bigint, OUT o_lock_delay bigint, OUT o_store bytea
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
  SELECT store INTO o_store FROM lockkeeper.lk_meta;
  o_now := lockkeeper.lk_micros(v_now);
END $$;

-- Renews a session. o_version counts its evictions; NULL says that the session is over. It takes no
-- locks but those of its own session.
CREATE OR REPLACE FUNCTION lockkeeper.lk_renew(
  p_session bytea, OUT o_now bigint, OUT o_version bigint
) LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(lockkeeper.lk_session_key(p_session))
     FROM lockkeeper.lk_session WHERE id = p_session AND expires > clock_timestamp();
  -- The clock is read again behind the wait for the row, if there is one.
  UPDATE lockkeeper.lk_session
     SET expires = clock_timestamp() + ttl, dead_at = clock_timestamp() + ttl + lock_delay
   WHERE id = p_session AND expires > clock_timestamp();
  IF FOUND THEN
    SELECT count(*) INTO o_version FROM lockkeeper.lk_evicted WHERE session = p_session;
  END IF;
  o_now := lockkeeper.lk_micros(clock_timestamp());
END $$;

-- Which server this is, with which history of the data: another number whenever the data, the server, its last
-- start, its last recovery from a crash of one of its processes or its timeline is another. Such a recovery keeps the
-- start and loses the commits that were not on disk, and it is what sets back the statistics of the writer (before
-- PostgreSQL 15 they are slow to read, and left out). NULL if the server does not tell.
CREATE OR REPLACE FUNCTION lockkeeper.lk_history() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_recovered timestamptz;
BEGIN
  IF current_setting('server_version_num')::integer >= 150000 THEN
    v_recovered := pg_stat_get_bgwriter_stat_reset_time();
  END IF;
  RETURN (SELECT hashtextextended(concat_ws('/', encode(store, 'hex'), extract(epoch FROM pg_postmaster_start_time()),
                                            extract(epoch FROM v_recovered),
                                            left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)), 0)
            FROM lockkeeper.lk_meta);
EXCEPTION WHEN query_canceled OR OTHERS THEN
  RETURN NULL;
END $$;

-- The same, and what the session's tickets and the server are now, so that nothing has to be inferred from
-- connections, which a pooler or a proxy keeps open while another server takes over. o_history is lk_history().
-- o_count and o_sum are the digest of the tickets that the session has in lk_ticket, and first in the lines of
-- p_names: first tickets have no index by session, which would make every lock dearer. o_layout is the schema's.
--
-- What cannot be read (a transaction has locked its table, the statement's time is over) is NULL: the session is
-- renewed all the same. The block only reads, so it takes no transaction id of its own.
--
-- What layout 4 knows as this function has these arguments and answers in all later layouts: it is called by
-- programs that stay connected while the schema is brought up to date.
CREATE OR REPLACE FUNCTION lockkeeper.lk_renew(
  p_session bytea, p_names text[], OUT o_now bigint, OUT o_version bigint, OUT o_layout integer,
  OUT o_history bigint, OUT o_count bigint, OUT o_sum bigint
) LANGUAGE plpgsql AS $$
BEGIN
  SELECT r.o_now, r.o_version INTO o_now, o_version FROM lockkeeper.lk_renew(p_session) r;
  IF o_version IS NULL THEN
    RETURN;
  END IF;
  IF current_setting('lock_timeout') = '0' THEN PERFORM lockkeeper.lk_bound(); END IF;
  BEGIN
    SELECT layout INTO o_layout FROM lockkeeper.lk_meta;
    BEGIN
      o_history := lockkeeper.lk_history();
    EXCEPTION WHEN insufficient_privilege THEN
      NULL;
    END;
    SELECT count(*), coalesce(sum((get_byte(id, 0)::bigint << 24) + (get_byte(id, 1) << 16)
                                  + (get_byte(id, 2) << 8) + get_byte(id, 3)), 0)
      INTO o_count, o_sum
      FROM (SELECT id FROM lockkeeper.lk_ticket WHERE session = p_session
            UNION ALL
            SELECT id FROM lockkeeper.lk_line
             WHERE name = ANY (p_names) AND session = p_session AND id IS NOT NULL) AS tickets;
  EXCEPTION WHEN query_canceled OR lock_not_available THEN
    NULL;
  END;
END $$;

-- Ends a session at once. Its tickets are dead from now on; lk_clear takes them away.
CREATE OR REPLACE FUNCTION lockkeeper.lk_close(p_session bytea) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE lockkeeper.lk_session
     SET expires = '-infinity', dead_at = least(dead_at, clock_timestamp())
   WHERE id = p_session;
END $$;

-- Takes tickets of a dead session out of their lines: those given, and up to so many others. Lines
-- that are locked are left out and named in o_skipped, unless there is but one, which is waited for.
-- o_more says that it has to be called again. A session that lives after all loses nothing. It takes at most
-- 64 advisory locks; lines for which that does not suffice are named in o_skipped, too.
CREATE OR REPLACE FUNCTION lockkeeper.lk_clear(
  p_session bytea, p_names text[], p_most integer,
  OUT o_more boolean, OUT o_freed text[], OUT o_skipped text[], OUT o_news text[]
) LANGUAGE plpgsql AS $$
DECLARE
  v_name text;
  v_alone boolean := p_most = 0 AND cardinality(p_names) = 1;
  v_seen integer := 0;
  v_done integer := 0;
  v_locks integer := 1;
  v_others integer;
  f record;
BEGIN
  IF current_setting('lock_timeout') = '0' THEN PERFORM lockkeeper.lk_bound(); END IF;
  PERFORM set_config('lk.most', '8', true);
  o_more := false;
  o_freed := '{}';
  o_skipped := '{}';
  o_news := '{}';
  IF NOT lockkeeper.lk_bury(p_session, NULL, false, clock_timestamp()) THEN
    RETURN;
  END IF;
  FOR v_name IN
    SELECT n COLLATE "C" AS name FROM unnest(p_names) AS n
    UNION SELECT name FROM (SELECT DISTINCT name FROM lockkeeper.lk_ticket
                             WHERE session = p_session LIMIT p_most) t
    ORDER BY name
  LOOP
    v_seen := v_seen + 1;
    IF v_locks > 45 THEN
      o_skipped := o_skipped || v_name;
      CONTINUE;
    END IF;
    IF v_alone THEN
      CONTINUE WHEN NOT lockkeeper.lk_hold_line(v_name);
    ELSE
      PERFORM FROM lockkeeper.lk_line WHERE name = v_name FOR UPDATE SKIP LOCKED;
      IF NOT FOUND THEN
        o_skipped := o_skipped || v_name;
        CONTINUE;
      END IF;
    END IF;
    -- Those at the end of the line too, where settling does not look.
    WITH gone AS (
      DELETE FROM lockkeeper.lk_ticket
       WHERE name = v_name AND session = p_session AND fence IS NULL RETURNING 1
    )
    UPDATE lockkeeper.lk_line SET others = others - (SELECT count(*) FROM gone)
     WHERE name = v_name AND (SELECT count(*) FROM gone) > 0;
    SELECT others INTO v_others FROM lockkeeper.lk_line WHERE name = v_name;
    SELECT * INTO f FROM lockkeeper.lk_settle(v_name, clock_timestamp(), 0);
    SELECT v_locks + 2 + 2 * (v_others - others) INTO v_locks
      FROM lockkeeper.lk_line WHERE name = v_name;
    o_news := o_news || f.o_news;
    IF NOT f.o_waits THEN
      o_freed := o_freed || v_name;
    END IF;
    PERFORM FROM lockkeeper.lk_ticket WHERE name = v_name AND session = p_session;
    IF NOT FOUND THEN
      v_done := v_done + 1;
    END IF;
  END LOOP;
  -- Tickets that a checked fence keeps must not be tried for ever.
  o_more := v_seen >= p_most AND v_done > 0 AND NOT v_alone;
END $$;

-- Clears a few leftovers away: notes of closed tickets, sessions that have been dead for a minute, and lines
-- that have been idle for p_idle microseconds, looked for from where the last sweep stopped. It takes at most
-- 64 advisory locks, for which every server has room; if that does not suffice it can be called again at once,
-- and else after a second, however many ask: until then o_news is NULL. o_sessions are dead sessions that have
-- left tickets in lines: lk_clear is for them.
CREATE OR REPLACE FUNCTION lockkeeper.lk_sweep(
  p_idle bigint, p_most integer, OUT o_sessions bytea[], OUT o_news text[]
) LANGUAGE plpgsql SET lock_timeout = '10ms' AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_after text;
  v_next text;
  v_more boolean;
  v_full boolean := false;
  v_locks integer := 0;
  v_others integer;
  v_done text;
  v_from bytea := uuid_send(gen_random_uuid());
  r record;
  f record;
BEGIN
  o_sessions := '{}';
  SELECT place INTO v_after FROM lockkeeper.lk_meta
   WHERE swept < v_now - interval '1 second' FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  o_news := '{}';
  v_done := v_after;
  PERFORM set_config('lk.most', '8', true);
  DELETE FROM lockkeeper.lk_closed WHERE (ticket, session) IN (
    SELECT ticket, session FROM lockkeeper.lk_closed WHERE until <= v_now LIMIT p_most);
  -- From anywhere on: the tickets of some cannot go now, because users' transactions keep them.
  SELECT coalesce(array_agg(id), '{}') INTO o_sessions FROM (
    (SELECT s.id FROM lockkeeper.lk_session s
      WHERE s.id >= v_from AND s.dead_at <= v_now
        AND EXISTS (SELECT FROM lockkeeper.lk_ticket t WHERE t.session = s.id)
      ORDER BY s.id LIMIT 4)
    UNION ALL
    (SELECT s.id FROM lockkeeper.lk_session s
      WHERE s.id < v_from AND s.dead_at <= v_now
        AND EXISTS (SELECT FROM lockkeeper.lk_ticket t WHERE t.session = s.id)
      ORDER BY s.id LIMIT 4)
    LIMIT 4) dead;
  WITH gone AS (
    DELETE FROM lockkeeper.lk_session WHERE id IN (
      SELECT s.id FROM lockkeeper.lk_session s
       WHERE s.dead_at <= v_now - interval '2 minutes'
         AND NOT EXISTS (SELECT FROM lockkeeper.lk_ticket t WHERE t.session = s.id)
       LIMIT p_most FOR UPDATE SKIP LOCKED)
    RETURNING id
  )
  DELETE FROM lockkeeper.lk_evicted WHERE session IN (SELECT id FROM gone);
  SELECT max(name), count(*) = p_most INTO v_next, v_more FROM (
    SELECT name FROM lockkeeper.lk_line WHERE name > v_after ORDER BY name LIMIT p_most) page;
  -- Holds that have outlived their sessions, and the dead at the head of idle lines. A ticket whose fence
  -- a transaction has checked stays, and so does its line.
  FOR r IN
    SELECT DISTINCT t.name, 0 AS part FROM (
      SELECT name FROM lockkeeper.lk_ticket
       WHERE session IS NULL AND hold_until <= v_now LIMIT p_most) t
    UNION ALL
    SELECT l.name, 1 FROM lockkeeper.lk_line l
     WHERE l.name > v_after AND l.name <= v_next AND l.id IS NOT NULL AND l.others = 0
       AND greatest(l.last, l.fence) < lockkeeper.lk_micros(v_now) - p_idle
    ORDER BY part, name
  LOOP
    IF v_locks > 45 THEN
      v_full := true;
      v_next := v_done;
      EXIT;
    END IF;
    SELECT others INTO v_others FROM lockkeeper.lk_line WHERE name = r.name FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      SELECT * INTO f FROM lockkeeper.lk_settle(r.name, v_now, 0);
      SELECT v_locks + 3 + 2 * (v_others - others) INTO v_locks
        FROM lockkeeper.lk_line WHERE name = r.name;
      o_news := o_news || f.o_news;
    END IF;
    -- The holds are found by themselves the next time.
    v_done := CASE WHEN r.part = 1 THEN r.name ELSE v_done END;
  END LOOP;
  UPDATE lockkeeper.lk_meta
     SET swept = CASE WHEN v_full THEN '-infinity' ELSE v_now END,
         place = CASE WHEN v_full OR v_more THEN v_next ELSE '' END;
  DELETE FROM lockkeeper.lk_line WHERE name IN (
    SELECT l.name FROM lockkeeper.lk_line l
     WHERE l.name > v_after AND l.name <= v_next AND l.others = 0 AND l.id IS NULL
       AND greatest(l.last, l.fence) < lockkeeper.lk_micros(v_now) - p_idle AND l.closing < v_now
     FOR UPDATE OF l SKIP LOCKED);
END $$;

-- Does what a release and a hand-over need for the first time in a connection: reading, parsing and planning the
-- functions behind them takes some milliseconds, which no request should wait for. It happens in a line and a session
-- whose names no request can have, and no other transaction ever sees them, because all of it is undone.
CREATE OR REPLACE FUNCTION lockkeeper.lk_warm() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_name text := E'\x01' || pg_backend_pid();
  v_session bytea := convert_to(v_name, 'UTF8');
  v_now timestamptz := clock_timestamp();
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  BEGIN
    INSERT INTO lockkeeper.lk_session
    VALUES (v_session, '1 min', '0', v_now + interval '1 min', v_now + interval '1 min', '', '', 0, '');
    INSERT INTO lockkeeper.lk_line (name, last, others, capacity, weight, note)
    VALUES (v_name, 1, 1, 1, 1, '');
    INSERT INTO lockkeeper.lk_ticket (name, seq, id, session, weight, capacity, entered, note)
    VALUES (v_name, 1, v_session, v_session, 1, 1, v_now, '');
    PERFORM lockkeeper.lk_pass_on(v_name);
    PERFORM lockkeeper.lk_leave(v_name, v_session, v_session, 0, 0);
    RAISE EXCEPTION 'undone' USING ERRCODE = 'LK900';
  EXCEPTION WHEN SQLSTATE 'LK900' THEN
    NULL;
  END;
END $$;
