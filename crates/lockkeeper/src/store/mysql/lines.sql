-- The operations on lines. Each CALL is one round trip and one transaction of its own. Beside them there
-- are two plain statements, in statements.rs: one enters a line in which nobody stands, one leaves a line in
-- which nobody else does. They change the gate and see nothing else, so all that they must know is in it.
--
-- Order of locks, everywhere: line, gate, tickets, sessions in the order of their ids. The plain statements
-- have the gate alone; a renewal has its session's row alone, and so never waits for a line. Nothing here waits
-- for a user's transaction: the gate and the tickets, which such a transaction may hold, are taken with SKIP
-- LOCKED, and what is skipped counts as held.
--
-- READ COMMITTED: every statement sees what was committed before it began, so all that is read
-- after the line was locked is the line's present state, and no gaps are locked.
--
-- A subquery in an IF or a SET would lock the rows that it reads, so what is to be known is
-- SELECTed INTO a variable first.
--
-- FORCE INDEX: what is deleted may stay in the indexes for long (tables.sql). The statistics do not tell of it, and by the
-- name alone all of it would be walked over.
--
-- Answers are one row. No decision rests on a count of rows: a client may have asked the server
-- to count rows that it found and did not change (CLIENT_FOUND_ROWS).

-- The server's time, whatever the time zone of the connection.
CREATE PROCEDURE lk_now(OUT o_now BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_zone VARCHAR(64) DEFAULT @@session.time_zone;
  SET time_zone = '+00:00';
  SET o_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  SET time_zone = v_zone;
END
//

-- Takes the line, and makes its row if there is none.
CREATE PROCEDURE lk_take_line(p_name VARBINARY(512))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_last BIGINT;
  SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE;
  IF v_last IS NULL THEN
    INSERT INTO lk_line(name) VALUES (p_name) ON DUPLICATE KEY UPDATE last = last;
  END IF;
END
//

-- Makes the gate of a line that is ours. A user's transaction that takes a lock of this name as the first may
-- just be making it, which nobody can see; it is not waited for long.
CREATE PROCEDURE lk_make_gate(p_name VARBINARY(512), OUT o_gate INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_wait INT DEFAULT @@session.innodb_lock_wait_timeout;
  DECLARE CONTINUE HANDLER FOR 1205 SET o_gate = 0;
  SET o_gate = 1;
  SET SESSION innodb_lock_wait_timeout = 1;
  INSERT INTO lk_gate(name) VALUES (p_name) ON DUPLICATE KEY UPDATE last = last;
  SET SESSION innodb_lock_wait_timeout = v_wait;
END
//

-- Takes a line, and its gate if no user's transaction has that; makes what is not there. One of our
-- own has the gate without the line for a moment only, so it is tried a few times.  o_gate: is it ours
CREATE PROCEDURE lk_take(p_name VARBINARY(512), OUT o_gate INT)
SQL SECURITY INVOKER
taking: BEGIN
  DECLARE v_last BIGINT;
  DECLARE v_there, v_tries INT DEFAULT 0;
  SET o_gate = 1;
  SELECT g.last INTO v_last FROM lk_line l STRAIGHT_JOIN lk_gate g ON g.name = l.name
    WHERE l.name = p_name FOR UPDATE SKIP LOCKED;
  IF v_last IS NOT NULL THEN LEAVE taking; END IF;
  CALL lk_take_line(p_name);
  trying: LOOP
    SELECT last INTO v_last FROM lk_gate WHERE name = p_name FOR UPDATE SKIP LOCKED;
    IF v_last IS NOT NULL THEN LEAVE taking; END IF;
    IF v_tries = 0 THEN
      SELECT COUNT(*) INTO v_there FROM lk_gate WHERE name = p_name;
      IF NOT v_there THEN
        CALL lk_make_gate(p_name, o_gate);
        LEAVE taking;
      END IF;
    ELSEIF v_tries = 4 THEN
      SET o_gate = 0;
      LEAVE taking;
    END IF;
    SET v_tries = v_tries + 1;
    DO SLEEP(0.001 * v_tries);
  END LOOP;
END
//

-- Is a session over, so that its granted or its waiting tickets must go? Then its row is ours. NULL if
-- somebody has the row: a renewal, or a user's transaction, for which nobody waits.
CREATE PROCEDURE lk_is_over(p_session BINARY(16), p_granted INT, p_now BIGINT, OUT o_over INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_ends BIGINT;
  DECLARE v_there INT;
  SELECT IF(p_granted, dead_at, expires) INTO v_ends FROM lk_session
    WHERE id = p_session FOR UPDATE SKIP LOCKED;
  SET o_over = v_ends <= p_now;
  IF v_ends IS NULL THEN
    SELECT COUNT(*) INTO v_there FROM lk_session WHERE id = p_session;
    IF NOT v_there THEN SET o_over = 1; END IF;
  END IF;
END
//

-- Ends a session that is dead at this moment; whatever it has left is swept.
CREATE PROCEDURE lk_end(p_session BINARY(16), p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
  UPDATE lk_session SET expires = 0, dead_at = 0, ended = p_now, sweep_at = p_now
    WHERE id = p_session AND dead_at <= p_now AND ended = 0;
END
//

-- Takes the dead out of the granted of a line and ends their sessions. A ticket stays if a user's
-- transaction has checked it (lk_fence_check), or if its session was renewed just in time: a renewal
-- that is slower than this finds its session over. o_stay is the weight of those that stay; o_alive, how many
-- of them live.
CREATE PROCEDURE lk_bury(
  p_name VARBINARY(512), p_now BIGINT, p_min_fence BIGINT, OUT o_stay BIGINT, OUT o_alive BIGINT,
  OUT o_buried BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_id, v_session BINARY(16);
  DECLARE v_weight, v_seq BIGINT;
  DECLARE v_over, v_done INT DEFAULT 0;
  DECLARE dead CURSOR FOR
    SELECT t.id, t.session, t.weight FROM lk_ticket t FORCE INDEX (lk_ticket_order) LEFT JOIN lk_session s ON s.id = t.session
    WHERE t.name = p_name AND t.fence >= p_min_fence
      AND IF(t.session IS NULL, t.hold_until, COALESCE(s.dead_at, 0)) <= p_now
    ORDER BY t.session;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = 1;
  SET o_stay = 0, o_alive = 0, o_buried = 0;
  OPEN dead;
  burial: LOOP
    FETCH dead INTO v_id, v_session, v_weight;
    IF v_done THEN LEAVE burial; END IF;
    SET v_seq = NULL, v_over = NULL;
    SELECT seq INTO v_seq FROM lk_ticket WHERE name = p_name AND id = v_id FOR UPDATE SKIP LOCKED;
    IF v_seq IS NOT NULL THEN CALL lk_is_over(v_session, 1, p_now, v_over); END IF;
    IF v_over IS NOT TRUE THEN
      SET o_stay = o_stay + v_weight, o_alive = o_alive + (v_seq IS NOT NULL);
    ELSE
      DELETE FROM lk_ticket WHERE name = p_name AND id = v_id;
      SET o_buried = o_buried + 1;
      CALL lk_end(v_session, p_now);
    END IF;
    SET v_done = 0;
  END LOOP;
  CLOSE dead;
END
//

-- Takes a dead ticket out of the gate, which is ours, and ends its session.  o_dead: it was dead indeed
CREATE PROCEDURE lk_bury_first(p_name VARBINARY(512), p_session BINARY(16), p_now BIGINT, OUT o_dead INT)
SQL SECURITY INVOKER
BEGIN
  CALL lk_is_over(p_session, 1, p_now, o_dead);
  IF o_dead THEN
    UPDATE lk_gate SET fence = 0, session = COALESCE(session, '') WHERE name = p_name;
    CALL lk_end(p_session, p_now);
  END IF;
END
//

-- Brings a line up to date, which the caller has, and its gate too if p_gate says so: the dead fall out and
-- their sessions end, the longest prefix that fits is granted. Reads no further than the first live
-- ticket that must wait. Without the gate nobody is granted anything.
-- o_capacity is 0 for an empty line; o_waits says that nobody else may be granted anything; o_moves is
-- when the line can move without anybody writing; o_drawn is the first fence that was drawn, or 0.
CREATE PROCEDURE lk_settle(
  p_name VARBINARY(512), p_now BIGINT, p_gate INT,
  OUT o_capacity BIGINT, OUT o_used BIGINT, OUT o_waits INT, OUT o_moves BIGINT, OUT o_drawn BIGINT)
SQL SECURITY INVOKER
settling: BEGIN
  DECLARE v_session BINARY(16);
  DECLARE v_standing, v_number, v_fence, v_capacity, v_weight, v_ends, v_stray BIGINT;
  DECLARE v_crowd, v_dead, v_now_crowd INT DEFAULT 0;
  SET o_capacity = 0, o_used = 0, o_waits = 0, o_moves = NULL, o_drawn = 0;
  SELECT standing, stray INTO v_standing, v_stray FROM lk_line WHERE name = p_name;
  SELECT g.last, g.crowd, g.fence, g.session, g.weight, g.capacity,
      IF(g.session IS NULL, g.hold_until, COALESCE(s.dead_at, 0))
    INTO v_number, v_crowd, v_fence, v_session, v_weight, v_capacity, v_ends
    FROM lk_gate g LEFT JOIN lk_session s ON s.id = g.session WHERE g.name = p_name;
  IF v_fence > 0 THEN
    IF v_ends <= p_now AND p_gate THEN CALL lk_bury_first(p_name, v_session, p_now, v_dead); END IF;
    IF v_dead IS NOT TRUE THEN
      SET o_capacity = v_capacity, o_used = v_weight, o_moves = GREATEST(v_ends, p_now + 20000);
    END IF;
  END IF;
  IF NOT p_gate THEN
    IF o_capacity = 0 AND v_standing > 0 THEN
      SELECT COALESCE(MAX(capacity), 0) INTO o_capacity FROM lk_ticket WHERE name = p_name;
    END IF;
    SET o_waits = 1, o_moves = p_now + 20000;
    LEAVE settling;
  END IF;
  IF v_standing > 0 THEN
    CALL lk_settle_others(
      p_name, p_now, v_number, v_standing, o_capacity, o_used, o_waits, o_moves, o_drawn);
  END IF;
  SET v_now_crowd = v_standing > 0 OR v_stray > p_now;
  IF o_drawn > 0 OR v_now_crowd <> v_crowd THEN
    UPDATE lk_gate SET last = v_number, crowd = v_now_crowd WHERE name = p_name;
  END IF;
END
//

-- The part of lk_settle for those behind the first. io_number is the last fence, io_standing how many they are.
CREATE PROCEDURE lk_settle_others(
  p_name VARBINARY(512), p_now BIGINT, INOUT io_number BIGINT, INOUT io_standing BIGINT,
  INOUT io_capacity BIGINT, INOUT io_used BIGINT, INOUT io_waits INT, INOUT io_moves BIGINT, INOUT io_drawn BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_id, v_session BINARY(16);
  DECLARE v_last, v_min_fence, v_min_seq, v_low, v_seq, v_stay, v_alive, v_buried BIGINT;
  DECLARE v_expires, v_dead_at, v_weight, v_capacity, v_used, v_moves, v_dead BIGINT;
  DECLARE v_over INT;
  SELECT last, min_fence, min_seq INTO v_last, v_min_fence, v_min_seq FROM lk_line WHERE name = p_name;
  SELECT MAX(IF(e.ends > p_now, e.capacity, 0)),
      COALESCE(SUM(IF(e.ends > p_now, e.weight, 0)), 0), MIN(IF(e.ends > p_now, e.ends, NULL)),
      MIN(IF(e.ends > p_now, e.fence, NULL)), COALESCE(SUM(e.ends <= p_now), 0), MAX(e.capacity)
    INTO v_capacity, v_used, v_moves, v_low, v_dead, v_stay
    FROM (SELECT t.weight, t.capacity, t.fence,
        IF(t.session IS NULL, t.hold_until, COALESCE(s.dead_at, 0)) AS ends
      FROM lk_ticket t FORCE INDEX (lk_ticket_order) LEFT JOIN lk_session s ON s.id = t.session
      WHERE t.name = p_name AND t.fence >= v_min_fence) e;
  SET io_capacity = GREATEST(io_capacity, COALESCE(v_capacity, 0)), io_used = io_used + v_used;
  SET io_moves = LEAST(COALESCE(io_moves, v_moves), COALESCE(v_moves, io_moves));
  IF v_dead > 0 THEN
    SET v_capacity = v_stay;
    CALL lk_bury(p_name, p_now, v_min_fence, v_stay, v_alive, v_buried);
    SET io_standing = io_standing - v_buried;
    IF v_stay > 0 THEN
      SET io_capacity = v_capacity, io_used = io_used + v_stay, io_moves = p_now + 20000, v_low = v_min_fence;
    END IF;
  END IF;
  grants: LOOP
    SET v_id = NULL;
    SELECT t.id, t.seq, t.session, t.weight, t.capacity, s.expires, s.dead_at
      INTO v_id, v_seq, v_session, v_weight, v_capacity, v_expires, v_dead_at
      FROM lk_ticket t FORCE INDEX (lk_ticket_order) LEFT JOIN lk_session s ON s.id = t.session
      WHERE t.name = p_name AND t.fence = 0 AND t.seq >= v_min_seq ORDER BY t.seq LIMIT 1;
    IF v_id IS NULL THEN
      SET v_min_seq = v_last + 1;
      LEAVE grants;
    END IF;
    SET v_min_seq = v_seq;
    IF COALESCE(v_expires, 0) <= p_now THEN
      CALL lk_is_over(v_session, 0, p_now, v_over);
      IF v_over IS NULL THEN
        SET io_waits = 1, io_moves = p_now + 20000;
        LEAVE grants;
      ELSEIF v_over THEN
        -- The session may only be expired: its held tickets have their lock-delay.
        DELETE FROM lk_ticket WHERE name = p_name AND id = v_id;
        SET io_standing = io_standing - 1;
        CALL lk_end(v_session, p_now);
        ITERATE grants;
      END IF;
      SELECT dead_at INTO v_dead_at FROM lk_session WHERE id = v_session;
    END IF;
    IF io_capacity = 0 THEN SET io_capacity = v_capacity; END IF;
    IF io_used + v_weight > io_capacity THEN
      SET io_waits = 1;
      LEAVE grants;
    END IF;
    SET io_number = GREATEST(io_number + 1, v_last + 1, p_now);
    IF io_drawn = 0 THEN SET io_drawn = io_number; END IF;
    UPDATE lk_ticket SET fence = io_number, granted = p_now WHERE name = p_name AND id = v_id;
    SET io_used = io_used + v_weight, io_moves = LEAST(COALESCE(io_moves, v_dead_at), v_dead_at);
    SET v_low = COALESCE(v_low, io_number);
  END LOOP;
  IF v_low IS NULL AND v_id IS NULL THEN SET io_standing = 0; END IF;
  UPDATE lk_line SET standing = io_standing, min_seq = v_min_seq, blind = 0,
    min_fence = COALESCE(v_low, io_number + 1) WHERE name = p_name;
END
//

-- Tells one who waits how the line stands.
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

-- Grants a newcomer what is free in a line that is ours, with its gate: in the gate itself, if nobody is
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
  p_queue INT, p_deadline BIGINT, p_most BIGINT, p_note VARBINARY(4096))
SQL SECURITY INVOKER
enter: BEGIN
  DECLARE v_now, v_standing, v_number, v_expires, v_capacity, v_moves, v_seq BIGINT;
  DECLARE v_fence, v_closed BIGINT;
  DECLARE v_used, v_drawn BIGINT DEFAULT 0;
  DECLARE v_gate, v_waits INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lk_take(p_name, v_gate);
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
  SELECT GREATEST(g.last + 1, l.last + 1, v_now) INTO v_number
    FROM lk_line l LEFT JOIN lk_gate g ON g.name = l.name WHERE l.name = p_name;
  -- A gate that is just being made has no number that could be seen.
  SET v_number = COALESCE(v_number, v_now);
  UPDATE lk_line SET last = v_number, standing = standing + 1, blind = IF(v_gate, blind, 1)
    WHERE name = p_name;
  INSERT INTO lk_ticket(name, id, session, seq, weight, capacity, entered, note)
    VALUES (p_name, p_ticket, p_session, v_number, p_weight, p_capacity, v_now, p_note);
  IF v_gate THEN UPDATE lk_gate SET crowd = 1 WHERE name = p_name; END IF;
  COMMIT;
  CALL lk_answer_wait('queued', p_name, v_now, v_number, v_moves);
END
//

-- Releases or withdraws a ticket and hands the lock to the next one. With p_keep it stays closed for
-- so long; with p_stray a copy of its enter that comes within that time is refused.
-- -> released | withdrawn | gone | pinned (a user's transaction is in the way: try again), with the
--    first fence that was drawn for others
CREATE PROCEDURE lk_leave(
  p_name VARBINARY(512), p_ticket BINARY(16), p_session BINARY(16), p_keep BIGINT, p_stray BIGINT)
SQL SECURITY INVOKER
leaving: BEGIN
  DECLARE v_now, v_first, v_fence, v_capacity, v_used, v_moves BIGINT;
  DECLARE v_drawn BIGINT DEFAULT 0;
  DECLARE v_gate, v_there, v_waits INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lk_take(p_name, v_gate);
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
      UPDATE lk_gate SET fence = 0 WHERE name = p_name;
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

-- Ends somebody's ticket.  -> evicted | gone | pinned
CREATE PROCEDURE lk_evict(p_name VARBINARY(512), p_ticket BINARY(16))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_last, v_first, v_seq, v_capacity, v_used, v_moves, v_drawn BIGINT;
  DECLARE v_session BINARY(16);
  DECLARE v_gate, v_waits INT;
  DECLARE v_what VARCHAR(10) DEFAULT 'gone';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE;
  IF v_last IS NOT NULL THEN
    CALL lk_take(p_name, v_gate);
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    CALL lk_settle(p_name, v_now, v_gate, v_capacity, v_used, v_waits, v_moves, v_drawn);
    SELECT fence, session INTO v_first, v_session FROM lk_gate
      WHERE name = p_name AND id = p_ticket AND fence > 0;
    SELECT seq, session INTO v_seq, v_session FROM lk_ticket
      WHERE name = p_name AND id = p_ticket FOR UPDATE SKIP LOCKED;
    IF v_first > 0 AND v_gate OR v_seq IS NOT NULL THEN
      IF v_first > 0 THEN
        UPDATE lk_gate SET fence = 0, session = COALESCE(session, '') WHERE name = p_name;
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

-- Says how one ticket stands, and grants what has come free by expiry. Reads alone as long as
-- nothing is due; a line that somebody is just changing needs no help.
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
      SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
      START TRANSACTION;
      SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE SKIP LOCKED;
      IF v_last IS NOT NULL THEN
        CALL lk_take(p_name, v_gate);
        SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
        CALL lk_settle(p_name, v_now, v_gate, v_capacity, v_used, v_waits, v_moves, v_drawn);
      END IF;
      COMMIT;
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

-- How many tickets stand; p_list is for each: the length of its name in two bytes, the name, the
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
