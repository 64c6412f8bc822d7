-- For the users' own transactions: CALL these on any connection, from any language. They begin and
-- commit nothing. READ COMMITTED refuses least; SERIALIZABLE is not for them, because there InnoDB locks what is
-- only read, too.
--
-- Refusals are errors, and the transaction should then be rolled back:
--   LK001  the lock is held, and did not come free in time
--   LK002  the transaction's snapshot is too old to tell; begin again, or lock before reading
--   LK003  the lock is not held any more
--   LK004  there is no transaction

-- Refuses to go on without a transaction: the lock would be gone before its fence is read. Outside of a
-- transaction the server forgets a savepoint at once.
CREATE PROCEDURE lk_in_transaction()
SQL SECURITY INVOKER
BEGIN
  DECLARE EXIT HANDLER FOR 1305
    SIGNAL SQLSTATE 'LK004' SET MESSAGE_TEXT = 'there is no transaction; begin one first';
  SAVEPOINT lk_here;
  RELEASE SAVEPOINT lk_here;
END
//

-- Takes the lock for as long as the transaction lives. Tickets that come meanwhile wait in line. Waits at most
-- p_wait_ms while the lock is held.  -> the fence
--
-- A snapshot may be too old to tell which ticket holds the lock. Every grant raises `last`: if it is what was seen,
-- nothing has been granted since. v_fresh says that reads were seen to change, so there is no old snapshot.
--
-- While it waits it must have nothing locked: the holder could not leave, and the wait would be in vain.
CREATE PROCEDURE lk_lock(p_name VARBINARY(512), p_wait_ms BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_session BINARY(16);
  DECLARE v_now, v_until, v_seen, v_before, v_got, v_last, v_first, v_dead, v_ends BIGINT;
  DECLARE v_fresh, v_old, v_held INT DEFAULT 0;
  CALL lk_in_transaction();
  CALL lk_now(v_now);
  SET v_until = v_now + COALESCE(p_wait_ms, 0) * 1000;
  waiting: LOOP
    SET v_before = v_seen, v_seen = NULL;
    SELECT g.last, g.fence, g.session, IF(g.session IS NULL, g.hold_until, COALESCE(s.dead_at, 0))
      INTO v_seen, v_first, v_session, v_ends
      FROM lk_gate g LEFT JOIN lk_session s ON s.id = g.session WHERE g.name = p_name;
    IF v_seen <> v_before THEN SET v_fresh = 1; END IF;
    -- Nobody is overtaken who stands in line already.
    CALL lk_others(p_name, v_now, 1, v_held);
    SET v_dead = IF(v_ends <= v_now, v_first, 0), v_got = NULL;
    IF v_seen IS NULL AND NOT v_held THEN
      SET v_dead = 0;
      CALL lk_first_gate(p_name, v_now, v_got);
    ELSEIF v_first = v_dead AND NOT v_held THEN
      CALL lk_try_gate(p_name, v_dead, v_seen, v_fresh, v_got, v_last);
      IF v_got IS NULL THEN
        -- Who does not see now what was seen there has an old snapshot.
        SELECT last <> v_seen OR v_fresh, COALESCE(last < v_last, 0), last INTO v_fresh, v_old, v_seen
          FROM lk_gate WHERE name = p_name;
      END IF;
    END IF;
    IF v_got IS NOT NULL THEN LEAVE waiting; END IF;
    IF v_old THEN
      SIGNAL SQLSTATE 'LK002' SET MESSAGE_TEXT = 'the snapshot of the transaction is older than the lock';
    ELSEIF v_now >= v_until THEN
      SIGNAL SQLSTATE 'LK001' SET MESSAGE_TEXT = 'the lock is held';
    END IF;
    DO SLEEP(0.005);
    CALL lk_now(v_now);
  END LOOP;
  -- Before anything is written: a refusal does not undo what its procedure has done.
  IF v_dead > 0 THEN CALL lk_lock_dead(v_session, v_now, v_until, v_fresh); END IF;
  UPDATE lk_gate SET last = GREATEST(last + 1, v_now), crowd = 1, fence = 0, session = COALESCE(session, '')
    WHERE name = p_name;
  -- Those who were granted something behind the first can leave without the gate.
  CALL lk_others(p_name, v_now, 0, v_held);
  WHILE v_held DO
    IF v_now >= v_until THEN SIGNAL SQLSTATE 'LK001' SET MESSAGE_TEXT = 'the lock is held'; END IF;
    DO SLEEP(0.005);
    CALL lk_now(v_now);
    CALL lk_others(p_name, v_now, 0, v_held);
  END WHILE;
  SELECT last AS fence FROM lk_gate WHERE name = p_name;
END
//

-- Takes the gate if it is free, or its holder is p_dead, and nothing was granted that cannot be seen. Does not
-- wait.  o_got: not NULL if it was taken; o_last: the last fence as it is now, NULL if another transaction has locked
-- the gate
--
-- In READ COMMITTED InnoDB unlocks a row that does not fit, if it was not read by a single key. But MariaDB keeps
-- it locked where it had to queue for it, and with SKIP LOCKED it does, for a moment; where it may not wait it does
-- not queue, and the refusal is an error. With innodb_rollback_on_timeout that error would end the user's
-- transaction.
CREATE PROCEDURE lk_try_gate(
  p_name VARBINARY(512), p_dead BIGINT, p_seen BIGINT, p_fresh INT, OUT o_got BIGINT, OUT o_last BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE CONTINUE HANDLER FOR 1205, 3572 BEGIN END;
  SET @lk_last = NULL;
  IF @@innodb_rollback_on_timeout THEN
    SELECT last INTO o_got FROM lk_gate WHERE name >= p_name AND name <= p_name
      AND IF((@lk_last := last) < 0, 0, (fence = 0 OR fence = p_dead) AND (p_fresh OR last = p_seen))
      FOR UPDATE SKIP LOCKED;
  ELSE
    /*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
    SELECT last INTO o_got FROM lk_gate WHERE name >= p_name AND name <= p_name
      AND IF((@lk_last := last) < 0, 0, (fence = 0 OR fence = p_dead) AND (p_fresh OR last = p_seen))
      FOR UPDATE /*!80001 SKIP LOCKED */;
  END IF;
  SET o_last = @lk_last;
END
//

-- Makes the gate of a name that was never used. Another transaction may just be making it, and is not waited for.
-- o_got: not NULL if the gate is ours
CREATE PROCEDURE lk_first_gate(p_name VARBINARY(512), p_now BIGINT, OUT o_got BIGINT)
SQL SECURITY INVOKER
making: BEGIN
  DECLARE v_refused, v_held INT DEFAULT 0;
  DECLARE v_fence BIGINT;
  DECLARE CONTINUE HANDLER FOR 1205 BEGIN
    -- Then all that the user has done is undone, who must hear of it.
    IF @@innodb_rollback_on_timeout THEN RESIGNAL; END IF;
    SET v_refused = 1;
  END;
  IF @@innodb_rollback_on_timeout THEN
    INSERT INTO lk_gate(name) VALUES (p_name) ON DUPLICATE KEY UPDATE last = last;
  ELSE
    /*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
    INSERT INTO lk_gate(name) VALUES (p_name) ON DUPLICATE KEY UPDATE last = last;
  END IF;
  IF v_refused THEN LEAVE making; END IF;
  -- If it was there all the same it is locked now to the transaction's end, whoever has it.
  SELECT last, fence INTO o_got, v_fence FROM lk_gate WHERE name = p_name;
  CALL lk_others(p_name, p_now, 1, v_held);
  IF o_got IS NULL THEN
    SIGNAL SQLSTATE 'LK002' SET MESSAGE_TEXT = 'the snapshot of the transaction is older than the lock';
  ELSEIF v_fence > 0 OR v_held THEN
    SIGNAL SQLSTATE 'LK002' SET MESSAGE_TEXT = 'others have taken the lock for the first time just now';
  END IF;
END
//

-- Are there tickets behind the first? With p_waiting the waiting ones count; without, the
-- gate is the transaction's, and the dead are taken out of the line.
CREATE PROCEDURE lk_others(p_name VARBINARY(512), p_now BIGINT, p_waiting INT, OUT o_held INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_stay, v_alive, v_buried BIGINT;
  DECLARE v_min_fence, v_min_seq BIGINT DEFAULT 0;
  SELECT COALESCE(MAX(min_fence), 1), COALESCE(MAX(min_seq), 0) INTO v_min_fence, v_min_seq
    FROM lk_line WHERE name = p_name;
  IF p_waiting THEN
    SELECT EXISTS (
      SELECT 1 FROM lk_ticket t FORCE INDEX (lk_ticket_order) LEFT JOIN lk_session s ON s.id = t.session
      WHERE t.name = p_name AND (t.fence >= v_min_fence OR t.fence = 0 AND t.seq >= v_min_seq)
        AND CASE WHEN t.session IS NULL THEN t.hold_until WHEN t.fence = 0 THEN COALESCE(s.expires, 0)
          ELSE COALESCE(s.dead_at, 0) END > p_now) INTO o_held;
  ELSE
    CALL lk_bury(p_name, p_now, v_min_fence, 0, v_stay, v_alive, v_buried);
    IF v_alive THEN
      -- Its session's row is locked now, and must not be for long.
      SIGNAL SQLSTATE 'LK002' SET MESSAGE_TEXT = 'the snapshot of the transaction is older than the lock';
    END IF;
    SELECT EXISTS (SELECT 1 FROM lk_ticket FORCE INDEX (lk_ticket_order) WHERE name = p_name AND fence >= v_min_fence) INTO o_held;
  END IF;
END
//

-- Ends a session that seems to be dead; the transaction's snapshot may be too old to tell. Another transaction
-- may have its row, because it took another lock of the same session.
CREATE PROCEDURE lk_lock_dead(p_session BINARY(16), p_now BIGINT, p_until BIGINT, p_fresh INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT DEFAULT p_now;
  DECLARE v_over INT;
  CALL lk_is_over(p_session, 1, v_now, p_fresh, v_over);
  WHILE v_over IS NULL DO
    IF v_now >= p_until THEN SIGNAL SQLSTATE 'LK001' SET MESSAGE_TEXT = 'the lock is held'; END IF;
    DO SLEEP(0.005);
    CALL lk_now(v_now);
    CALL lk_is_over(p_session, 1, v_now, p_fresh, v_over);
  END WHILE;
  IF NOT v_over THEN
    SIGNAL SQLSTATE 'LK002' SET MESSAGE_TEXT = 'the snapshot of the transaction is older than the lock';
  END IF;
  CALL lk_end(p_session, v_now);
END
//

-- Is this grant still held? Then it is until the transaction ends: the next ticket waits for
-- that. Locks the ticket's row alone, so its session is renewed as ever. p_store, p_name, p_ticket
-- and p_fence are what a sequencer says; p_store may be NULL.  -> 1
CREATE PROCEDURE lk_fence_check(
  p_store BINARY(8), p_name VARBINARY(512), p_ticket BINARY(16), p_fence BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_fence, v_here BIGINT;
  DECLARE v_behind INT;
  CALL lk_in_transaction();
  -- A ticket never moves between gate and row, so a snapshot can say where it is, however old.
  SELECT COUNT(*) INTO v_behind FROM lk_ticket WHERE name = p_name AND id = p_ticket;
  IF NOT v_behind THEN
    SELECT fence INTO v_fence FROM lk_gate
      WHERE name = p_name AND id = p_ticket AND session IS NOT NULL AND fence > 0 LOCK IN SHARE MODE;
  END IF;
  IF v_fence IS NULL THEN
    SELECT fence INTO v_fence FROM lk_ticket
      WHERE name = p_name AND id = p_ticket AND session IS NOT NULL LOCK IN SHARE MODE;
  END IF;
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
-- -> the fence, or 0 if another owner has the row or there is none
CREATE PROCEDURE lk_row_lock(
  p_table VARCHAR(128), p_column VARCHAR(64), p_key VARBINARY(512), p_owner VARBINARY(255), p_ttl_ms BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT;
  IF p_owner IS NULL THEN
    SIGNAL SQLSTATE '22004' SET MESSAGE_TEXT = 'the owner of a row must have a name';
  END IF;
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

-- Keeps the row for another p_ttl_ms, if it is still ours.  -> the fence, or 0
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
