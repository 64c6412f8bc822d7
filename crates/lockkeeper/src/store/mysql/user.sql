-- For the users' own transactions: CALL these on any connection, from any language. They begin and
-- commit nothing. They are right in every isolation level; READ COMMITTED refuses least.
--
-- Refusals are errors, and the transaction should then be rolled back:
--   LK001  the lock is held by others, and did not come free in time
--   LK002  the transaction's snapshot is too old to tell; begin again, or lock before reading
--   LK003  the lock is not held any more

-- Takes the lock for as long as the transaction lives. Who asks for it meanwhile waits in line. Waits for
-- those who hold it at most p_wait_ms, and for another transaction as long as
-- innodb_lock_wait_timeout says.  -> the fence
CREATE PROCEDURE lk_lock(p_name VARBINARY(512), p_wait_ms BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_until, v_gate, v_seen, v_stay, v_buried BIGINT;
  DECLARE v_min_fence, v_min_seq BIGINT DEFAULT 0;
  DECLARE v_held INT DEFAULT 1;
  CALL lk_now(v_now);
  SET v_until = v_now + p_wait_ms * 1000;
  -- Nobody is overtaken who stands in line already.
  waiting: LOOP
    SELECT COALESCE(MAX(min_fence), 1), COALESCE(MAX(min_seq), 0) INTO v_min_fence, v_min_seq
      FROM lk_line WHERE name = p_name;
    SELECT EXISTS (
      SELECT 1 FROM lk_ticket t LEFT JOIN lk_session s ON s.id = t.session
      WHERE t.name = p_name AND (t.fence >= v_min_fence OR t.fence = 0 AND t.seq >= v_min_seq)
        AND IF(t.session IS NULL, t.hold_until, COALESCE(s.dead_at, 0)) > v_now)
      INTO v_held;
    IF NOT v_held OR v_now >= v_until THEN LEAVE waiting; END IF;
    DO SLEEP(0.005);
    CALL lk_now(v_now);
  END LOOP;
  IF v_held THEN
    SIGNAL SQLSTATE 'LK001' SET MESSAGE_TEXT = 'the lock is held';
  END IF;
  INSERT INTO lk_gate(name, last) VALUES (p_name, 0) ON DUPLICATE KEY UPDATE last = last;
  -- A locking read sees what is, a plain one what the transaction's snapshot has. If they
  -- agree, nothing has been granted since the snapshot.
  SELECT last INTO v_gate FROM lk_gate WHERE name = p_name FOR UPDATE;
  SELECT last INTO v_seen FROM lk_gate WHERE name = p_name;
  IF v_seen IS NULL OR v_seen <> v_gate THEN
    SIGNAL SQLSTATE 'LK002' SET MESSAGE_TEXT = 'the snapshot of the transaction is older than the lock';
  END IF;
  holders: LOOP
    CALL lk_now(v_now);
    CALL lk_bury(p_name, v_now, v_min_fence, v_stay, v_buried);
    SELECT EXISTS (SELECT 1 FROM lk_ticket WHERE name = p_name AND fence >= v_min_fence) INTO v_held;
    IF NOT v_held OR v_now >= v_until THEN LEAVE holders; END IF;
    DO SLEEP(0.005);
  END LOOP;
  IF v_held THEN
    SIGNAL SQLSTATE 'LK001' SET MESSAGE_TEXT = 'the lock is held';
  END IF;
  UPDATE lk_gate SET last = GREATEST(v_gate + 1, v_now) WHERE name = p_name;
  SELECT GREATEST(v_gate + 1, v_now) AS fence;
END
//

-- Is this grant still held? Then it is until the transaction ends: whoever wants to have the lock next
-- waits for that. Locks the ticket's row alone, so its session is renewed as ever. p_store, p_name, p_ticket
-- and p_fence are what a sequencer says; p_store may be NULL.  -> 1
CREATE PROCEDURE lk_fence_check(
  p_store BINARY(8), p_name VARBINARY(512), p_ticket BINARY(16), p_fence BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_fence, v_here BIGINT;
  SELECT fence INTO v_fence FROM lk_ticket
    WHERE name = p_name AND id = p_ticket AND session IS NOT NULL LOCK IN SHARE MODE;
  SELECT COUNT(*) INTO v_here FROM lk_meta WHERE id = 1 AND store = COALESCE(p_store, store);
  IF p_fence <= 0 OR v_fence IS NULL OR v_fence <> p_fence OR NOT v_here THEN
    SIGNAL SQLSTATE 'LK003' SET MESSAGE_TEXT = 'the lock is not held any more';
  END IF;
  SELECT 1 AS held;
END
//

-- Lock fields on the rows of a table of the user's own:
--   lock_owner VARBINARY(255) NULL, lock_fence BIGINT NOT NULL DEFAULT 0, lock_expires BIGINT NOT NULL DEFAULT 0
-- A row is named by its table, the column of its key and the key. Each is one statement on that row alone.

CREATE PROCEDURE lk_row_do(p_sql TEXT, p_table VARCHAR(128), p_column VARCHAR(64))
SQL SECURITY INVOKER
BEGIN
  SET @lk_sql = REPLACE(REPLACE(p_sql, '{column}', CONCAT('`', REPLACE(p_column, '`', '``'), '`')),
    '{table}', CONCAT('`', REPLACE(REPLACE(p_table, '`', '``'), '.', '`.`'), '`'));
  PREPARE lk_statement FROM @lk_sql;
END
//

-- Takes the row for p_ttl_ms. The same owner again keeps its fence and gets the time anew.
-- -> the fence, or 0 if somebody else has the row or there is none
CREATE PROCEDURE lk_row_lock(
  p_table VARCHAR(128), p_column VARCHAR(64), p_key VARBINARY(512), p_owner VARBINARY(255), p_ttl_ms BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT;
  CALL lk_now(v_now);
  SET @lk_key = p_key, @lk_owner = p_owner, @lk_now = v_now, @lk_until = v_now + p_ttl_ms * 1000;
  -- The fence is decided before owner and expiry are changed: assignments go from left to right.
  CALL lk_row_do('UPDATE {table} SET
      lock_fence = LAST_INSERT_ID(IF(lock_owner <=> @lk_owner AND lock_expires > @lk_now,
        lock_fence, GREATEST(lock_fence + 1, @lk_now))),
      lock_owner = @lk_owner, lock_expires = @lk_until
    WHERE {column} = @lk_key AND (lock_owner IS NULL OR lock_owner = @lk_owner OR lock_expires <= @lk_now)',
    p_table, p_column);
  DO LAST_INSERT_ID(0);
  EXECUTE lk_statement;
  DEALLOCATE PREPARE lk_statement;
  SELECT LAST_INSERT_ID() AS fence;
END
//

-- Has the row for another p_ttl_ms, if it is still ours.  -> the fence, or 0
CREATE PROCEDURE lk_row_renew(
  p_table VARCHAR(128), p_column VARCHAR(64), p_key VARBINARY(512), p_fence BIGINT, p_ttl_ms BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT;
  CALL lk_now(v_now);
  SET @lk_key = p_key, @lk_fence = p_fence, @lk_now = v_now, @lk_until = v_now + p_ttl_ms * 1000;
  CALL lk_row_do('UPDATE {table} SET lock_fence = LAST_INSERT_ID(lock_fence), lock_expires = @lk_until
    WHERE {column} = @lk_key AND lock_fence = @lk_fence AND lock_owner IS NOT NULL AND lock_expires > @lk_now',
    p_table, p_column);
  DO LAST_INSERT_ID(0);
  EXECUTE lk_statement;
  DEALLOCATE PREPARE lk_statement;
  SELECT LAST_INSERT_ID() AS fence;
END
//

-- Gives the row back, if it is still ours.  -> the fence, or 0
CREATE PROCEDURE lk_row_release(
  p_table VARCHAR(128), p_column VARCHAR(64), p_key VARBINARY(512), p_fence BIGINT)
SQL SECURITY INVOKER
BEGIN
  SET @lk_key = p_key, @lk_fence = p_fence;
  CALL lk_row_do('UPDATE {table} SET lock_fence = LAST_INSERT_ID(lock_fence), lock_owner = NULL, lock_expires = 0
    WHERE {column} = @lk_key AND lock_fence = @lk_fence AND lock_owner IS NOT NULL',
    p_table, p_column);
  DO LAST_INSERT_ID(0);
  EXECUTE lk_statement;
  DEALLOCATE PREPARE lk_statement;
  SELECT LAST_INSERT_ID() AS fence;
END
//
