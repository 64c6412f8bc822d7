-- The operations on lines. Each CALL is one round trip and one transaction of its own. Beside them there
-- are the plain statements in statements.rs: one takes a free lock, two release a lock without waiters. They read
-- and change the gate and nothing else, so all that they must know is in it.
--
-- Order of locks, everywhere: line, gate, tickets, sessions in the order of their ids. The plain statements
-- lock the gate alone; a renewal locks its session's row alone, and so never waits for a line. Nothing here waits
-- for a user's transaction: the gate and the tickets, which such a transaction may hold, are taken with SKIP
-- LOCKED, and what is skipped counts as held. A call waits for the line only where p_wait says so, and not for long;
-- one that cannot have it is refused (1205), and has done nothing.
--
-- READ COMMITTED: every statement sees what was committed before it began, so all that is read
-- after the line was locked is the line's present state, and no gaps are locked.
--
-- A subquery in an IF or a SET would lock the rows that it reads, so the procedures SELECT what they need INTO a
-- variable first.
--
-- FORCE INDEX: deleted rows may stay in the indexes for long (tables.sql). The statistics do not tell of them, and
-- a range by the name alone would walk over all of them.
--
-- Answers are one row. No decision rests on a count of rows: a client may have asked the server
-- to count rows that it found and did not change (CLIENT_FOUND_ROWS).

-- Tells a waiting ticket how the line stands.
CREATE PROCEDURE lk_answer_wait(
  p_what VARCHAR(10), p_name VARBINARY(512), p_now BIGINT, p_seq BIGINT, p_moves BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_min_fence, v_min_seq BIGINT;
  -- All is committed already, so no error may say that nothing was done.
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
    SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1180, MESSAGE_TEXT = 'done, but the answer cannot be told';
  SELECT min_fence, min_seq INTO v_min_fence, v_min_seq FROM lk_line WHERE name = p_name;
  SELECT p_what AS what, 0 AS fence,
    (SELECT COUNT(*) FROM lk_gate WHERE name = p_name AND fence > 0)
      + (SELECT COUNT(*) FROM lk_ticket FORCE INDEX (lk_ticket_order) WHERE name = p_name AND fence >= v_min_fence)
      + (SELECT COUNT(*) FROM lk_ticket FORCE INDEX (lk_ticket_order)
        WHERE name = p_name AND fence = 0 AND seq >= v_min_seq AND seq < p_seq) AS ahead,
    COALESCE(p_moves - p_now, 0) AS recheck, h.host, h.pid, h.program, h.note, p_now - h.granted AS held_for
  FROM (SELECT 1 AS one) o LEFT JOIN (
    SELECT 1 AS one, f.host, f.pid, f.program, f.note, f.granted FROM (
      (SELECT s.host, s.pid, s.program, g.note, g.fence AS granted, g.fence
        FROM lk_gate g JOIN lk_session s ON s.id = g.session WHERE g.name = p_name AND g.fence > 0)
      UNION ALL
      (SELECT s.host, s.pid, s.program, t.note, t.granted, t.fence
        FROM lk_ticket t FORCE INDEX (lk_ticket_order) JOIN lk_session s ON s.id = t.session
        WHERE t.name = p_name AND t.fence >= v_min_fence ORDER BY t.fence LIMIT 1)) f
    ORDER BY f.fence LIMIT 1) h ON h.one = o.one;
END
//

-- Grants a new ticket what is free in a line that is locked, with its gate: in the gate itself, if no ticket is
-- before it.  -> granted fence
CREATE PROCEDURE lk_admit(
  p_name VARBINARY(512), p_ticket BINARY(16), p_session BINARY(16), p_weight BIGINT, p_capacity BIGINT,
  p_first INT, p_now BIGINT, p_note VARBINARY(4096))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_number BIGINT;
  SELECT GREATEST(g.last + 1, l.last + 1, p_now) INTO v_number
    FROM lk_line l JOIN lk_gate g ON g.name = l.name WHERE l.name = p_name;
  IF p_first THEN
    UPDATE lk_gate SET last = v_number, fence = v_number, id = p_ticket, session = p_session,
      weight = p_weight, capacity = p_capacity, note = p_note, note_edit = 0, cell_edit = 0
      WHERE name = p_name;
  ELSE
    UPDATE lk_gate SET last = v_number, crowd = 1 WHERE name = p_name;
    UPDATE lk_line SET min_fence = IF(standing = 0, v_number, min_fence), standing = standing + 1
      WHERE name = p_name;
    /*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
    INSERT INTO lk_ticket(name, id, session, seq, weight, capacity, fence, entered, granted, note)
      VALUES (p_name, p_ticket, p_session, v_number, p_weight, p_capacity, v_number, p_now, p_now, p_note);
  END IF;
  COMMIT;
  SELECT 'granted' AS what, v_number AS fence;
END
//

-- Enters a line.
-- -> granted fence | queued or busy with ahead, recheck, holder | over | closed | capacity n | full
--  | late now
CREATE PROCEDURE lk_enter(
  p_name VARBINARY(512), p_ticket BINARY(16), p_session BINARY(16), p_weight BIGINT, p_capacity BIGINT,
  p_queue INT, p_deadline BIGINT, p_most BIGINT, p_note VARBINARY(4096), p_wait INT)
SQL SECURITY INVOKER
enter: BEGIN
  DECLARE v_now, v_standing, v_number, v_expires, v_capacity, v_moves, v_seq BIGINT;
  DECLARE v_fence, v_closed BIGINT;
  DECLARE v_used, v_drawn BIGINT DEFAULT 0;
  DECLARE v_gate, v_waits INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lk_take(p_name, p_wait, v_gate);
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  IF v_now > p_deadline THEN
    ROLLBACK;
    SELECT 'late' AS what, v_now AS fence;
    LEAVE enter;
  END IF;
  SELECT s.expires, c.until INTO v_expires, v_closed FROM lk_session s
    LEFT JOIN lk_closed c ON c.ticket = p_ticket AND c.session = s.id WHERE s.id = p_session;
  IF COALESCE(v_expires, 0) <= v_now OR v_closed IS NOT NULL THEN
    ROLLBACK;
    SELECT IF(COALESCE(v_expires, 0) <= v_now, 'over', 'closed') AS what, 0 AS fence;
    LEAVE enter;
  END IF;
  CALL lk_settle(p_name, v_now, v_gate, v_capacity, v_used, v_waits, v_moves, v_drawn);
  SELECT l.standing + COALESCE(g.fence > 0, 0) INTO v_standing
    FROM lk_line l LEFT JOIN lk_gate g ON g.name = l.name WHERE l.name = p_name;
  SELECT fence, fence INTO v_seq, v_fence FROM lk_gate
    WHERE name = p_name AND id = p_ticket AND session = p_session AND fence > 0;
  IF v_fence IS NULL AND v_standing > 0 THEN
    SELECT seq, fence INTO v_seq, v_fence FROM lk_ticket
      WHERE name = p_name AND id = p_ticket AND session = p_session;
  END IF;
  IF v_fence > 0 THEN
    COMMIT;
    SELECT 'granted' AS what, v_fence AS fence;
    LEAVE enter;
  ELSEIF v_seq IS NOT NULL THEN
    COMMIT;
    CALL lk_answer_wait('queued', p_name, v_now, v_seq, v_moves);
    LEAVE enter;
  ELSEIF v_capacity > 0 AND v_capacity <> p_capacity THEN
    COMMIT;
    SELECT 'capacity' AS what, v_capacity AS fence;
    LEAVE enter;
  ELSEIF NOT v_waits AND v_used + p_weight <= p_capacity THEN
    CALL lk_admit(p_name, p_ticket, p_session, p_weight, p_capacity, v_used = 0, v_now, p_note);
    LEAVE enter;
  ELSEIF NOT p_queue THEN
    COMMIT;
    CALL lk_answer_wait('busy', p_name, v_now, 9223372036854775807, v_moves);
    LEAVE enter;
  ELSEIF v_standing >= p_most THEN
    COMMIT;
    SELECT 'full' AS what, 0 AS fence;
    LEAVE enter;
  END IF;
  -- A gate that is just being made has no number that could be seen.
  SELECT GREATEST(COALESCE(g.last, 0) + 1, l.last + 1, v_now) INTO v_number
    FROM lk_line l LEFT JOIN lk_gate g ON g.name = l.name WHERE l.name = p_name;
  UPDATE lk_line SET last = v_number, standing = standing + 1, blind = IF(v_gate, blind, 1)
    WHERE name = p_name;
  -- A user's transaction may have locked the gap in which it comes to stand.
  /*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
  INSERT INTO lk_ticket(name, id, session, seq, weight, capacity, entered, note)
    VALUES (p_name, p_ticket, p_session, v_number, p_weight, p_capacity, v_now, p_note);
  IF v_gate THEN UPDATE lk_gate SET crowd = 1 WHERE name = p_name; END IF;
  COMMIT;
  CALL lk_answer_wait('queued', p_name, v_now, v_number, v_moves);
END
//

-- Releases or withdraws a ticket and hands the lock to the next one. With p_keep it stays closed for
-- so long; with p_stray a copy of its enter that comes within that time is refused.
-- -> released | withdrawn | gone | pinned (a user's transaction has the ticket: try again), with the
--    first fence that was drawn for other tickets
CREATE PROCEDURE lk_leave(
  p_name VARBINARY(512), p_ticket BINARY(16), p_session BINARY(16), p_keep BIGINT, p_stray BIGINT, p_wait INT)
SQL SECURITY INVOKER
leaving: BEGIN
  DECLARE v_now, v_first, v_fence, v_capacity, v_used, v_moves BIGINT;
  DECLARE v_drawn BIGINT DEFAULT 0;
  DECLARE v_gate, v_there, v_waits INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lk_take(p_name, p_wait, v_gate);
  SELECT fence INTO v_first FROM lk_gate
    WHERE name = p_name AND id = p_ticket AND session = p_session AND fence > 0;
  IF v_first IS NULL THEN
    SELECT fence INTO v_fence FROM lk_ticket
      WHERE name = p_name AND id = p_ticket AND session = p_session FOR UPDATE SKIP LOCKED;
    IF v_fence IS NULL THEN
      SELECT COUNT(*) INTO v_there FROM lk_ticket
        WHERE name = p_name AND id = p_ticket AND session = p_session;
    END IF;
  END IF;
  -- Without the gate nobody can tell whether the ticket is just coming into it.
  IF v_there OR NOT v_gate AND (v_first > 0 OR p_stray > 0) THEN
    ROLLBACK;
    SELECT 'pinned' AS what, 0 AS fence;
    LEAVE leaving;
  END IF;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  IF p_stray > 0 THEN
    INSERT INTO lk_closed(ticket, session, until) VALUES (p_ticket, p_session, v_now + p_stray)
      ON DUPLICATE KEY UPDATE until = v_now + p_stray;
    UPDATE lk_line SET stray = v_now + p_stray WHERE name = p_name;
    IF v_gate THEN UPDATE lk_gate SET crowd = 1 WHERE name = p_name; END IF;
  END IF;
  IF v_first IS NULL AND v_fence IS NULL THEN
    COMMIT;
    SELECT 'gone' AS what, 0 AS fence;
    LEAVE leaving;
  END IF;
  IF p_keep > 0 AND v_first > 0 THEN
    UPDATE lk_gate SET session = NULL, hold_until = v_now + p_keep WHERE name = p_name;
  ELSEIF p_keep > 0 AND v_fence > 0 THEN
    UPDATE lk_ticket SET session = NULL, hold_until = v_now + p_keep WHERE name = p_name AND id = p_ticket;
  ELSE
    IF v_first > 0 THEN
      UPDATE lk_gate SET fence = 0, session = '' WHERE name = p_name;
      -- Two copies of its enter may have put it into both places.
      SELECT COUNT(*) INTO v_there FROM lk_ticket WHERE name = p_name AND id = p_ticket AND session = p_session;
      IF v_there THEN
        DELETE FROM lk_ticket WHERE name = p_name AND id = p_ticket;
        UPDATE lk_line SET standing = standing - 1 WHERE name = p_name;
      END IF;
    ELSE
      DELETE FROM lk_ticket WHERE name = p_name AND id = p_ticket;
      UPDATE lk_line SET standing = standing - 1 WHERE name = p_name;
    END IF;
    CALL lk_settle(p_name, v_now, v_gate, v_capacity, v_used, v_waits, v_moves, v_drawn);
  END IF;
  COMMIT;
  SELECT IF(v_first > 0 OR v_fence > 0, 'released', 'withdrawn') AS what, v_drawn AS fence;
END
//

-- Evicts a ticket.  -> evicted | gone | pinned
CREATE PROCEDURE lk_evict(p_name VARBINARY(512), p_ticket BINARY(16), p_wait INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_first, v_seq, v_capacity, v_used, v_moves, v_drawn BIGINT;
  DECLARE v_session BINARY(16);
  DECLARE v_gate, v_waits, v_there INT;
  DECLARE v_what VARCHAR(10) DEFAULT 'gone';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT (SELECT COUNT(*) FROM lk_line WHERE name = p_name)
    + (SELECT COUNT(*) FROM lk_gate WHERE name = p_name) INTO v_there;
  IF v_there THEN
    CALL lk_take(p_name, p_wait, v_gate);
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    CALL lk_settle(p_name, v_now, v_gate, v_capacity, v_used, v_waits, v_moves, v_drawn);
    SELECT fence, session INTO v_first, v_session FROM lk_gate
      WHERE name = p_name AND id = p_ticket AND fence > 0;
    SELECT seq, session INTO v_seq, v_session FROM lk_ticket
      WHERE name = p_name AND id = p_ticket FOR UPDATE SKIP LOCKED;
    IF v_first > 0 AND v_gate OR v_seq IS NOT NULL THEN
      IF v_first > 0 THEN
        UPDATE lk_gate SET fence = 0, session = '' WHERE name = p_name;
      ELSE
        DELETE FROM lk_ticket WHERE name = p_name AND id = p_ticket;
        UPDATE lk_line SET standing = standing - 1 WHERE name = p_name;
      END IF;
      UPDATE lk_session SET evictions = evictions + 1 WHERE id = v_session;
      CALL lk_settle(p_name, v_now, v_gate, v_capacity, v_used, v_waits, v_moves, v_drawn);
      SET v_what = 'evicted';
    ELSE
      SELECT IF(v_first > 0 OR COUNT(*), 'pinned', 'gone') INTO v_what FROM lk_ticket
        WHERE name = p_name AND id = p_ticket;
    END IF;
  END IF;
  COMMIT;
  SELECT v_what AS what, 0 AS fence;
END
//

-- Says how one ticket stands, and grants what has come free by expiry. Only reads as long as
-- nothing is due; a line that another request is just changing needs no help.
-- -> granted fence | queued … | gone
CREATE PROCEDURE lk_stand(p_name VARBINARY(512), p_ticket BINARY(16), p_session BINARY(16))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_last, v_min_fence, v_min_seq, v_fence, v_seq, v_capacity, v_used, v_moves, v_drawn BIGINT;
  DECLARE v_blind, v_due, v_gate, v_waits INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  SELECT fence, fence INTO v_seq, v_fence FROM lk_gate
    WHERE name = p_name AND id = p_ticket AND session = p_session AND fence > 0;
  IF v_fence IS NULL THEN
    SELECT seq, fence INTO v_seq, v_fence FROM lk_ticket
      WHERE name = p_name AND id = p_ticket AND session = p_session;
  END IF;
  IF v_fence = 0 THEN
    SELECT min_fence, min_seq, blind INTO v_min_fence, v_min_seq, v_blind FROM lk_line WHERE name = p_name;
    SELECT COALESCE(MIN(e.ends), 0), COALESCE(SUM(e.weight), 0) INTO v_moves, v_used
      FROM (SELECT t.weight, IF(t.session IS NULL, t.hold_until, COALESCE(s.dead_at, 0)) AS ends
        FROM lk_ticket t FORCE INDEX (lk_ticket_order) LEFT JOIN lk_session s ON s.id = t.session
        WHERE t.name = p_name AND t.fence >= v_min_fence
        UNION ALL
        SELECT g.weight, IF(g.session IS NULL, g.hold_until, COALESCE(s.dead_at, 0)) AS ends
        FROM lk_gate g LEFT JOIN lk_session s ON s.id = g.session
        WHERE g.name = p_name AND g.fence > 0) e;
    SELECT v_blind OR v_moves <= v_now OR COALESCE(s.expires, 0) <= v_now OR v_used + t.weight <= t.capacity
      INTO v_due FROM lk_ticket t FORCE INDEX (lk_ticket_order) LEFT JOIN lk_session s ON s.id = t.session
      WHERE t.name = p_name AND t.fence = 0 AND t.seq >= v_min_seq ORDER BY t.seq LIMIT 1;
    IF v_due THEN
      BEGIN
        -- The others of the same poll have nothing to do with it.
        DECLARE EXIT HANDLER FOR 1205, 3572 ROLLBACK;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        START TRANSACTION;
        SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE SKIP LOCKED;
        IF v_last IS NOT NULL THEN
          CALL lk_take(p_name, 0, v_gate);
          SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
          CALL lk_settle(p_name, v_now, v_gate, v_capacity, v_used, v_waits, v_moves, v_drawn);
        END IF;
        COMMIT;
      END;
      SET v_seq = NULL, v_fence = NULL;
      SELECT seq, fence INTO v_seq, v_fence FROM lk_ticket
        WHERE name = p_name AND id = p_ticket AND session = p_session;
    END IF;
  END IF;
  IF v_fence = 0 THEN
    CALL lk_answer_wait('queued', p_name, v_now, v_seq, v_moves);
  ELSE
    SELECT IF(v_seq IS NULL, 'gone', 'granted') AS what, COALESCE(v_fence, 0) AS fence;
  END IF;
END
//

-- How tickets stand. p_list has for each ticket the length of its name in two bytes, the name, the
-- ticket's id.  -> as lk_stand, one answer after the other
CREATE PROCEDURE lk_poll(p_session BINARY(16), p_list LONGBLOB)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_at, v_length INT UNSIGNED DEFAULT 1;
  WHILE v_at < LENGTH(p_list) DO
    SET v_length = CONV(HEX(SUBSTRING(p_list, v_at, 2)), 16, 10);
    CALL lk_stand(SUBSTRING(p_list, v_at + 2, v_length),
      SUBSTRING(p_list, v_at + 2 + v_length, 16), p_session);
    SET v_at = v_at + 18 + v_length;
  END WHILE;
END
//
