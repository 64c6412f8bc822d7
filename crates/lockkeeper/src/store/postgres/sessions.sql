-- Sessions: opened, renewed, closed, and cleared away when nobody comes back for them.

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

-- Ends a session at once. Its tickets are dead from now on; lk_clear takes them away.
CREATE OR REPLACE FUNCTION lockkeeper.lk_close(p_session bytea) RETURNS void
LANGUAGE sql AS $$
  UPDATE lockkeeper.lk_session
     SET expires = '-infinity', dead_at = least(dead_at, clock_timestamp())
   WHERE id = p_session
$$;

-- Takes tickets of a dead session out of their lines: those given, and up to so many others. Lines
-- that are locked are left out and named in o_skipped, unless there is but one, which is waited for.
-- o_more says that it has to be called again. A session that lives after all loses nothing.
CREATE OR REPLACE FUNCTION lockkeeper.lk_clear(
  p_session bytea, p_names text[], p_most integer,
  OUT o_more boolean, OUT o_freed text[], OUT o_skipped text[], OUT o_news text[]
) LANGUAGE plpgsql AS $$
DECLARE
  v_name text;
  v_alone boolean := p_most = 0 AND cardinality(p_names) = 1;
  v_seen integer := 0;
  v_done integer := 0;
  f record;
BEGIN
  IF current_setting('lock_timeout') = '0' THEN PERFORM lockkeeper.lk_bound(); END IF;
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
    SELECT * INTO f FROM lockkeeper.lk_settle(v_name, clock_timestamp());
    o_news := o_news || f.o_news;
    IF NOT f.o_waits THEN
      o_freed := o_freed || v_name;
    END IF;
    PERFORM FROM lockkeeper.lk_ticket WHERE name = v_name AND session = p_session;
    IF NOT FOUND THEN
      v_done := v_done + 1;
    END IF;
  END LOOP;
  -- Those who cannot go now, because a checked fence keeps them, must not be asked for ever.
  o_more := v_seen >= p_most AND v_done > 0 AND NOT v_alone;
END $$;

-- Clears a few leftovers away, at most once a second however many ask: notes of closed tickets,
-- sessions that have been dead for a minute, and lines that have been idle for p_idle microseconds,
-- looked for where the last one who did so stopped. o_sessions are dead sessions that have left tickets
-- in lines: lk_clear is for them.
CREATE OR REPLACE FUNCTION lockkeeper.lk_sweep(
  p_idle bigint, p_most integer, OUT o_sessions bytea[], OUT o_news text[]
) LANGUAGE plpgsql SET lock_timeout = '10ms' AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_after text;
  v_next text;
  v_more boolean;
  v_name text;
  f record;
BEGIN
  o_sessions := '{}';
  o_news := '{}';
  SELECT place INTO v_after FROM lockkeeper.lk_meta
   WHERE swept < v_now - interval '1 second' FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
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
       WHERE s.dead_at <= v_now - interval '2 minutes'
         AND NOT EXISTS (SELECT FROM lockkeeper.lk_ticket t WHERE t.session = s.id)
       LIMIT p_most FOR UPDATE SKIP LOCKED)
    RETURNING id
  )
  DELETE FROM lockkeeper.lk_evicted WHERE session IN (SELECT id FROM gone);
  SELECT max(name), count(*) = p_most INTO v_next, v_more FROM (
    SELECT name FROM lockkeeper.lk_line WHERE name > v_after ORDER BY name LIMIT p_most) page;
  UPDATE lockkeeper.lk_meta SET swept = v_now, place = CASE WHEN v_more THEN v_next ELSE '' END;
  -- The dead at the head of idle lines, and holds that have outlived their sessions. A ticket whose
  -- fence somebody has checked stays, and so does its line.
  FOR v_name IN
    SELECT l.name FROM lockkeeper.lk_line l
     WHERE l.name > v_after AND l.name <= v_next AND l.id IS NOT NULL AND l.others = 0
       AND greatest(l.last, l.fence) < lockkeeper.lk_micros(v_now) - p_idle
    UNION
    SELECT t.name FROM (SELECT name FROM lockkeeper.lk_ticket
                         WHERE session IS NULL AND hold_until <= v_now LIMIT p_most) t
  LOOP
    PERFORM FROM lockkeeper.lk_line WHERE name = v_name FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      SELECT * INTO f FROM lockkeeper.lk_settle(v_name, v_now);
      o_news := o_news || f.o_news;
    END IF;
  END LOOP;
  DELETE FROM lockkeeper.lk_line WHERE name IN (
    SELECT l.name FROM lockkeeper.lk_line l
     WHERE l.name > v_after AND l.name <= v_next AND l.others = 0 AND l.id IS NULL
       AND greatest(l.last, l.fence) < lockkeeper.lk_micros(v_now) - p_idle AND l.closing < v_now
     FOR UPDATE OF l SKIP LOCKED);
END $$;
