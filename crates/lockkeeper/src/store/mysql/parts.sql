-- What the operations are made of: locking lines and tickets, taking the dead out, granting what is free. The
-- rules for all of it are in lines.sql.

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
CREATE PROCEDURE lk_take_line(p_name VARBINARY(512), p_wait INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_last BIGINT;
  DECLARE v_there INT DEFAULT 0;
  IF p_wait THEN
    SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE;
  ELSE
    SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE SKIP LOCKED;
    IF v_last IS NULL THEN SELECT COUNT(*) INTO v_there FROM lk_line WHERE name = p_name; END IF;
    IF v_there THEN
      SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'somebody has the line locked';
    END IF;
  END IF;
  IF v_last IS NULL THEN
    INSERT INTO lk_line(name) VALUES (p_name) ON DUPLICATE KEY UPDATE last = last;
  END IF;
END
//

-- Makes the gate of a line that is locked. A user's transaction that takes a lock of this new name may just be
-- making it, which other transactions cannot see; it is not waited for. MariaDB can be told not to wait; in MySQL a
-- row that is just being made can be asked for.
CREATE PROCEDURE lk_make_gate(p_name VARBINARY(512), p_wait INT, OUT o_gate INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_last BIGINT;
  SET o_gate = 1;
  BEGIN
    DECLARE EXIT HANDLER FOR 1205, 3572 SET o_gate = 0;
    /*!80001 SELECT last INTO v_last FROM lk_gate WHERE name = p_name FOR UPDATE NOWAIT; */
    /*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
    INSERT INTO lk_gate(name) VALUES (p_name) ON DUPLICATE KEY UPDATE last = last;
  END;
  IF NOT o_gate AND @@innodb_rollback_on_timeout THEN
    -- The line was lost, too.
    START TRANSACTION;
    CALL lk_take_line(p_name, p_wait);
  END IF;
END
//

-- Locks a line, and its gate if no user's transaction has that; makes the rows that are not there. A plain statement
-- of ours locks the gate without the line, for a moment only, so the gate is tried a few times.  o_gate: is it ours
-- Comes first in its transaction.
CREATE PROCEDURE lk_take(p_name VARBINARY(512), p_wait INT, OUT o_gate INT)
SQL SECURITY INVOKER
taking: BEGIN
  DECLARE v_last BIGINT;
  DECLARE v_there, v_tries INT DEFAULT 0;
  SET o_gate = 1;
  SELECT g.last INTO v_last FROM lk_line l STRAIGHT_JOIN lk_gate g ON g.name = l.name
    WHERE l.name = p_name FOR UPDATE SKIP LOCKED;
  IF v_last IS NOT NULL THEN LEAVE taking; END IF;
  CALL lk_take_line(p_name, p_wait);
  trying: LOOP
    SELECT last INTO v_last FROM lk_gate WHERE name = p_name FOR UPDATE SKIP LOCKED;
    IF v_last IS NOT NULL THEN LEAVE taking; END IF;
    IF v_tries = 0 THEN
      SELECT COUNT(*) INTO v_there FROM lk_gate WHERE name = p_name;
      IF NOT v_there THEN
        CALL lk_make_gate(p_name, p_wait, o_gate);
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

-- Is a session over, so that its granted or its waiting tickets must go? Then its row is locked, or p_fresh says
-- that what is only read is true as well, and it was over so long ago that no renewal can be under way in which
-- its client still believes. NULL if another transaction has locked the row otherwise: a renewal, or a user's
-- transaction, which are not waited for.
CREATE PROCEDURE lk_is_over(p_session BINARY(16), p_granted INT, p_now BIGINT, p_fresh INT, OUT o_over INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_ends, v_seen BIGINT;
  DECLARE v_there INT;
  SELECT IF(p_granted, dead_at, expires) INTO v_ends FROM lk_session
    WHERE id = p_session FOR UPDATE SKIP LOCKED;
  SET o_over = v_ends <= p_now;
  IF v_ends IS NULL THEN
    SELECT COUNT(*), MAX(IF(p_granted, dead_at, expires)) INTO v_there, v_seen FROM lk_session
      WHERE id = p_session;
    IF NOT v_there OR p_fresh AND v_seen <= p_now - 5000000 THEN SET o_over = 1; END IF;
  END IF;
END
//

-- Ends a session that is dead at this moment; the sweep takes what it has left. If another transaction has locked its
-- row it stays as it is, and cannot be renewed any more.
CREATE PROCEDURE lk_end(p_session BINARY(16), p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_ended BIGINT;
  SELECT ended INTO v_ended FROM lk_session
    WHERE id = p_session AND dead_at <= p_now FOR UPDATE SKIP LOCKED;
  IF v_ended = 0 THEN
    UPDATE lk_session SET expires = 0, dead_at = 0, ended = p_now, sweep_at = p_now WHERE id = p_session;
  END IF;
END
//

-- Takes the dead out of the granted of a line and ends their sessions. A ticket stays if a user's
-- transaction has checked it (lk_fence_check), or if its session was renewed just in time: a renewal
-- that is slower than this finds its session over. o_stay is the weight of those that stay; o_alive, how many
-- of them live for sure. p_fresh as for lk_is_over.
CREATE PROCEDURE lk_bury(
  p_name VARBINARY(512), p_now BIGINT, p_min_fence BIGINT, p_fresh INT, OUT o_stay BIGINT, OUT o_alive BIGINT,
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
    SET v_over = NULL;
    CALL lk_take_ticket(p_name, v_id, v_seq);
    IF v_seq IS NOT NULL THEN CALL lk_is_over(v_session, 1, p_now, p_fresh, v_over); END IF;
    IF v_over IS NOT TRUE THEN
      SET o_stay = o_stay + v_weight, o_alive = o_alive + COALESCE(v_over = 0, 0);
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

-- Takes a dead ticket out of the gate, which is locked, and ends its session.  o_dead: it was dead indeed
CREATE PROCEDURE lk_bury_first(p_name VARBINARY(512), p_session BINARY(16), p_now BIGINT, OUT o_dead INT)
SQL SECURITY INVOKER
BEGIN
  CALL lk_is_over(p_session, 1, p_now, 1, o_dead);
  IF o_dead THEN
    UPDATE lk_gate SET fence = 0, session = COALESCE(session, '') WHERE name = p_name;
    CALL lk_end(p_session, p_now);
  END IF;
END
//

-- Brings a line up to date, which the caller has locked, and its gate too if p_gate says so: the dead fall out and
-- their sessions end, the longest prefix that fits is granted. Reads no further than the first live
-- ticket that must wait. Without the gate nothing is granted.
-- o_capacity is 0 for an empty line; o_waits says that no other ticket may be granted; o_moves is
-- when the line can move by expiry alone; o_drawn is the first fence that was drawn, or 0.
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

-- Locks a ticket's row, unless another transaction has.  o_seq: its place, or NULL
CREATE PROCEDURE lk_take_ticket(p_name VARBINARY(512), p_ticket BINARY(16), OUT o_seq BIGINT)
SQL SECURITY INVOKER
BEGIN
  SELECT seq INTO o_seq FROM lk_ticket WHERE name = p_name AND id = p_ticket FOR UPDATE SKIP LOCKED;
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
    CALL lk_bury(p_name, p_now, v_min_fence, 1, v_stay, v_alive, v_buried);
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
      CALL lk_take_ticket(p_name, v_id, v_seq);
      SET v_over = NULL;
      IF v_seq IS NOT NULL THEN CALL lk_is_over(v_session, 0, p_now, 1, v_over); END IF;
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
    CALL lk_take_ticket(p_name, v_id, v_seq);
    IF v_seq IS NULL THEN
      SET io_waits = 1, io_moves = p_now + 20000;
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
