-- For the users' own transactions: call these on any connection, from any language. They begin and
-- commit nothing. docs/sql.md shows them in use.
--
-- Refusals are errors:
--   LK001  the lock is held by others, and did not come free in time
--   LK002  not in this isolation level: what the transaction sees may be older than the lock
--   LK003  the lock is not held any more

-- Does a live ticket stand in the name's line?
CREATE OR REPLACE FUNCTION lockkeeper.lk_is_taken(p_name text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (SELECT FROM lockkeeper.lk_standing
                  WHERE name = p_name AND dead_at > clock_timestamp());
END $$;

-- Is the name free for a transaction that has its advisory lock? Ends the dead sessions in the line, so that they stay
-- dead. A dead ticket whose fence an open transaction has checked still holds the name.
CREATE OR REPLACE FUNCTION lockkeeper.lk_is_free(p_name text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  t record;
BEGIN
  FOR t IN SELECT id, session, hold_until, fence FROM lockkeeper.lk_standing WHERE name = p_name LOOP
    IF NOT lockkeeper.lk_bury(t.session, t.hold_until, t.fence IS NOT NULL, clock_timestamp())
       OR NOT pg_try_advisory_xact_lock(lockkeeper.lk_ticket_key(t.id)) THEN
      RETURN false;
    END IF;
  END LOOP;
  RETURN true;
END $$;

-- Takes the lock for as long as the transaction lives, or answers NULL if it did not come free within
-- p_wait_ms. Tickets that come meanwhile wait in line; a ticket that waits already is not overtaken.
--
-- The number it answers with is greater than that of every grant before. It is not written down: it is
-- less than that of the next as long as the server's clock is not set back.
CREATE OR REPLACE FUNCTION lockkeeper.lk_try_lock(p_name text, p_wait_ms bigint DEFAULT 0)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_until timestamptz := clock_timestamp()
    + least(coalesce(p_wait_ms, 0), 1000000000000) * interval '1 ms';
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a lock can be taken in READ COMMITTED transactions only'
      USING ERRCODE = 'LK002';
  END IF;
  LOOP
    -- A lock that was taken in vain goes back with this block.
    BEGIN
      -- Looked at first, because the mere attempt holds up transactions that grant.
      IF NOT lockkeeper.lk_is_taken(p_name)
         AND pg_try_advisory_xact_lock(lockkeeper.lk_name_key(p_name))
         AND lockkeeper.lk_is_free(p_name) THEN
        RETURN greatest((SELECT greatest(last, fence) + 1
                           FROM lockkeeper.lk_line WHERE name = p_name),
                        lockkeeper.lk_micros(clock_timestamp()));
      END IF;
      RAISE EXCEPTION 'the lock is held' USING ERRCODE = 'LK001';
    EXCEPTION WHEN SQLSTATE 'LK001' THEN
      IF clock_timestamp() >= v_until THEN
        RETURN NULL;
      END IF;
    END;
    PERFORM pg_sleep(0.005);
  END LOOP;
END $$;

-- The same, but that it did not come free is an error.
CREATE OR REPLACE FUNCTION lockkeeper.lk_lock(p_name text, p_wait_ms bigint DEFAULT 0)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_fence bigint := lockkeeper.lk_try_lock(p_name, p_wait_ms);
BEGIN
  IF v_fence IS NULL THEN
    RAISE EXCEPTION 'the lock % is held', quote_literal(p_name) USING ERRCODE = 'LK001';
  END IF;
  RETURN v_fence;
END $$;

-- Is this grant still held? Then it stays held until the transaction ends: a request that would end the ticket, also its
-- own holder's, waits for that. So what the transaction writes and the ownership are one step.
-- Nothing else is held up: not the session's renewal, not tickets that enter the line.
--
-- In READ COMMITTED only: a stricter transaction does not see what has become of the session since it
-- began.
CREATE OR REPLACE FUNCTION lockkeeper.lk_fence_check(p_name text, p_ticket bytea, p_fence bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a fence can be checked in READ COMMITTED transactions only'
      USING ERRCODE = 'LK002';
  END IF;
  PERFORM pg_advisory_xact_lock_shared(lockkeeper.lk_ticket_key(p_ticket));
  PERFORM FROM lockkeeper.lk_standing
   WHERE name = p_name AND id = p_ticket AND session IS NOT NULL AND fence = p_fence
     AND dead_at > clock_timestamp() AND expires > '-infinity';
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the lock % is not held any more', quote_literal(p_name)
      USING ERRCODE = 'LK003';
  END IF;
END $$;

-- The same for a sequencer as text: lk1:STORE:MODE:FENCE:TICKET:NAME, the name percent-encoded.
CREATE OR REPLACE FUNCTION lockkeeper.lk_fence_check(p_sequencer text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_part text[] := string_to_array(p_sequencer, ':');
  v_name text;
BEGIN
  IF v_part[1] <> 'lk1' OR array_length(v_part, 1) <> 6 THEN
    RAISE EXCEPTION '% is no sequencer', quote_literal(p_sequencer)
      USING ERRCODE = 'invalid_parameter_value';
  ELSIF decode(v_part[2], 'hex') <> (SELECT store FROM lockkeeper.lk_meta) THEN
    RAISE EXCEPTION 'the sequencer is of another store' USING ERRCODE = 'LK003';
  END IF;
  SELECT convert_from(decode(string_agg(
           CASE WHEN c[1] LIKE '\%%' THEN substr(c[1], 2) ELSE encode(convert_to(c[1], 'UTF8'), 'hex') END,
           '' ORDER BY n), 'hex'), 'UTF8')
    INTO v_name
    FROM regexp_matches(v_part[6], '%[0-9A-Fa-f]{2}|.', 'g') WITH ORDINALITY AS m(c, n);
  PERFORM lockkeeper.lk_fence_check(v_name, decode(v_part[5], 'hex'), v_part[4]::bigint);
END $$;

-- Lock fields on the rows of a table of the user's own:
--   lock_owner text, lock_fence bigint NOT NULL DEFAULT 0, lock_expires timestamptz
-- A row is named by its table, the column of its key and the key. Each call is one statement on that
-- row alone. The answer is the fence, or 0 if another owner has the row or there is none.

CREATE OR REPLACE FUNCTION lockkeeper.lk_row_do(
  p_set text, p_where text, p_table regclass, p_column name, p_key text,
  p_owner text, p_fence bigint, p_ttl_ms bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  v_type text;
  v_fence bigint;
BEGIN
  SELECT format_type(atttypid, atttypmod) INTO STRICT v_type FROM pg_attribute
   WHERE attrelid = p_table AND attname = p_column;
  EXECUTE format('UPDATE %s SET %s WHERE %I = $1::%s AND %s RETURNING lock_fence',
                 p_table, p_set, p_column, v_type, p_where)
    INTO v_fence
    USING p_key, p_owner, p_fence, p_ttl_ms * interval '1 ms';
  RETURN coalesce(v_fence, 0);
END $$;

-- Takes the row for p_ttl_ms. The same owner again keeps its fence and gets the time anew. Without an
-- owner it is not taken.
CREATE OR REPLACE FUNCTION lockkeeper.lk_row_lock(
  p_table regclass, p_column name, p_key text, p_owner text, p_ttl_ms bigint
) RETURNS bigint LANGUAGE sql AS $$
  SELECT lockkeeper.lk_row_do(
    'lock_fence = CASE WHEN lock_owner = $2 AND lock_expires > clock_timestamp() THEN lock_fence
       ELSE greatest(lock_fence + 1, lockkeeper.lk_micros(clock_timestamp())) END,
     lock_owner = $2, lock_expires = clock_timestamp() + $4',
    '$2 IS NOT NULL
     AND (lock_owner IS NULL OR lock_owner = $2 OR lock_expires <= clock_timestamp())',
    p_table, p_column, p_key, p_owner, NULL, p_ttl_ms)
$$;

-- Has the row for another p_ttl_ms, if it is still ours.
CREATE OR REPLACE FUNCTION lockkeeper.lk_row_renew(
  p_table regclass, p_column name, p_key text, p_fence bigint, p_ttl_ms bigint
) RETURNS bigint LANGUAGE sql AS $$
  SELECT lockkeeper.lk_row_do(
    'lock_expires = clock_timestamp() + $4',
    'lock_fence = $3 AND lock_owner IS NOT NULL AND lock_expires > clock_timestamp()',
    p_table, p_column, p_key, NULL, p_fence, p_ttl_ms)
$$;

-- Gives the row back, if it is still ours.
CREATE OR REPLACE FUNCTION lockkeeper.lk_row_release(
  p_table regclass, p_column name, p_key text, p_fence bigint
) RETURNS bigint LANGUAGE sql AS $$
  SELECT lockkeeper.lk_row_do(
    'lock_owner = NULL, lock_expires = NULL',
    'lock_fence = $3 AND lock_owner IS NOT NULL',
    p_table, p_column, p_key, NULL, p_fence, NULL)
$$;
