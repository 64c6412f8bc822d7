-- Layout 3, as it was made. Tests upgrade from it: it never changes.
SET SESSION sql_mode = 'STRICT_ALL_TABLES';
DELIMITER //
CREATE TABLE IF NOT EXISTS lk_meta(
  id     TINYINT   NOT NULL PRIMARY KEY,
  layout INT       NOT NULL,
  store  BINARY(8) NOT NULL
) ENGINE = InnoDB
//
CREATE TABLE IF NOT EXISTS lk_session(
  id        BINARY(16)    NOT NULL PRIMARY KEY,
  ttl       BIGINT        NOT NULL,
  delay     BIGINT        NOT NULL,
  expires   BIGINT        NOT NULL,
  dead_at   BIGINT        NOT NULL,
  ended     BIGINT        NOT NULL DEFAULT 0,
  sweep_at  BIGINT        NOT NULL,
  evictions BIGINT        NOT NULL DEFAULT 0,
  host      VARBINARY(64) NOT NULL,
  pid       INT UNSIGNED  NOT NULL,
  program   VARBINARY(64) NOT NULL
) ENGINE = InnoDB
//
CREATE TABLE IF NOT EXISTS lk_line(
  name      VARBINARY(512) NOT NULL PRIMARY KEY,
  last      BIGINT         NOT NULL DEFAULT 0,
  standing  BIGINT         NOT NULL DEFAULT 0,
  min_fence BIGINT         NOT NULL DEFAULT 1,
  min_seq   BIGINT         NOT NULL DEFAULT 0,
  stray     BIGINT         NOT NULL DEFAULT 0,
  blind     TINYINT        NOT NULL DEFAULT 0
) ENGINE = InnoDB
//
CREATE TABLE IF NOT EXISTS lk_gate(
  name       VARBINARY(512)  NOT NULL PRIMARY KEY,
  last       BIGINT          NOT NULL DEFAULT 0,
  crowd      TINYINT         NOT NULL DEFAULT 0,
  fence      BIGINT          NOT NULL DEFAULT 0,
  id         BINARY(16)      NOT NULL DEFAULT '',
  session    BINARY(16)      NULL DEFAULT '',
  weight     INT UNSIGNED    NOT NULL DEFAULT 1,
  capacity   INT UNSIGNED    NOT NULL DEFAULT 1,
  hold_until BIGINT          NOT NULL DEFAULT 0,
  note_edit  BIGINT          NOT NULL DEFAULT 0,
  cell_edit  BIGINT          NOT NULL DEFAULT 0,
  note       VARBINARY(4096) NOT NULL DEFAULT '',
  KEY lk_gate_session (session)
) ENGINE = InnoDB
//
CREATE TABLE IF NOT EXISTS lk_ticket(
  name       VARBINARY(512)  NOT NULL,
  id         BINARY(16)      NOT NULL,
  session    BINARY(16)      NULL,
  seq        BIGINT          NOT NULL,
  weight     INT UNSIGNED    NOT NULL,
  capacity   INT UNSIGNED    NOT NULL,
  fence      BIGINT          NOT NULL DEFAULT 0,
  entered    BIGINT          NOT NULL,
  granted    BIGINT          NOT NULL DEFAULT 0,
  hold_until BIGINT          NOT NULL DEFAULT 0,
  note       VARBINARY(4096) NOT NULL,
  note_edit  BIGINT          NOT NULL DEFAULT 0,
  cell_edit  BIGINT          NOT NULL DEFAULT 0,
  PRIMARY KEY (name, id),
  KEY lk_ticket_order (name, fence, seq),
  KEY lk_ticket_session (session, fence)
) ENGINE = InnoDB
//
CREATE TABLE IF NOT EXISTS lk_closed(
  ticket  BINARY(16) NOT NULL,
  session BINARY(16) NOT NULL,
  until   BIGINT     NOT NULL,
  PRIMARY KEY (ticket, session),
  KEY lk_closed_until (until)
) ENGINE = InnoDB
//
CREATE TABLE IF NOT EXISTS lk_cell(
  name  VARBINARY(512) NOT NULL PRIMARY KEY,
  bytes MEDIUMBLOB     NOT NULL,
  fence BIGINT         NOT NULL
) ENGINE = InnoDB
//
CREATE PROCEDURE lk_now(OUT o_now BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_zone VARCHAR(64) DEFAULT @@session.time_zone;
  SET time_zone = '+00:00';
  SET o_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  SET time_zone = v_zone;
END
//
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
CREATE PROCEDURE lk_take_ticket(p_name VARBINARY(512), p_ticket BINARY(16), OUT o_seq BIGINT)
SQL SECURITY INVOKER
BEGIN
  SELECT seq INTO o_seq FROM lk_ticket WHERE name = p_name AND id = p_ticket FOR UPDATE SKIP LOCKED;
END
//
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
CREATE PROCEDURE lk_open(
  p_session BINARY(16), p_ttl BIGINT, p_delay BIGINT, p_host VARBINARY(64), p_pid INT UNSIGNED,
  p_program VARBINARY(64))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  INSERT INTO lk_session(id, ttl, delay, expires, dead_at, sweep_at, host, pid, program)
    VALUES (p_session, p_ttl, p_delay, v_now + p_ttl, v_now + p_ttl + p_delay, v_now + p_ttl + p_delay,
      p_host, p_pid, p_program)
    ON DUPLICATE KEY UPDATE ttl = ttl;
  SELECT v_now AS now, s.ended > 0 AS is_over, s.ttl, s.delay, s.expires, m.store
    FROM lk_session s JOIN lk_meta m ON m.id = 1 WHERE s.id = p_session;
END
//
CREATE PROCEDURE lk_renew(p_session BINARY(16))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_expires, v_evictions, v_until BIGINT;
  DECLARE v_there INT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT expires, evictions INTO v_expires, v_evictions FROM lk_session WHERE id = p_session
    FOR UPDATE SKIP LOCKED;
  IF v_expires IS NULL THEN
    SELECT COUNT(*) INTO v_there FROM lk_session WHERE id = p_session;
    IF v_there THEN
      SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'somebody has the session locked';
    END IF;
  END IF;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  IF v_expires > v_now THEN
    UPDATE lk_session SET expires = v_now + ttl, dead_at = v_now + ttl + delay,
      sweep_at = v_now + ttl + delay WHERE id = p_session;
    SELECT expires INTO v_until FROM lk_session WHERE id = p_session;
  END IF;
  COMMIT;
  SELECT COALESCE(v_expires, 0) > v_now AS lives, COALESCE(v_evictions, 0) AS evictions,
    COALESCE(v_until, 0) AS expires,
    EXISTS (SELECT 1 FROM lk_session WHERE sweep_at <= v_now)
      OR EXISTS (SELECT 1 FROM lk_closed WHERE until <= v_now)
      OR EXISTS (SELECT 1 FROM lk_ticket WHERE session IS NULL AND hold_until <= v_now)
      OR EXISTS (SELECT 1 FROM lk_gate WHERE session IS NULL AND hold_until <= v_now) AS leftovers,
    v_now AS now, (SELECT store FROM lk_meta WHERE id = 1) AS store,
    CONCAT_WS(':', @@hostname, @@port, @@server_id) AS server;
END
//
CREATE PROCEDURE lk_clear_line(p_name VARBINARY(512), p_session BINARY(16), INOUT io_wait INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_id BINARY(16);
  DECLARE v_now, v_seq, v_capacity, v_used, v_moves, v_drawn BIGINT;
  DECLARE v_gate, v_waits INT;
  DECLARE v_gone, v_done INT DEFAULT 0;
  DECLARE waiting CURSOR FOR
    SELECT id FROM lk_ticket FORCE INDEX (lk_ticket_order)
    WHERE name = p_name AND fence = 0 AND session = p_session;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = 1;
  DECLARE EXIT HANDLER FOR 1205, 3572 BEGIN ROLLBACK; SET io_wait = 0; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lk_take(p_name, io_wait, v_gate);
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  SET v_done = 0;
  OPEN waiting;
  withdrawing: LOOP
    FETCH waiting INTO v_id;
    IF v_done THEN LEAVE withdrawing; END IF;
    CALL lk_take_ticket(p_name, v_id, v_seq);
    IF v_seq IS NOT NULL THEN
      DELETE FROM lk_ticket WHERE name = p_name AND id = v_id;
      SET v_gone = v_gone + 1;
    END IF;
    SET v_done = 0;
  END LOOP;
  CLOSE waiting;
  UPDATE lk_line SET standing = standing - v_gone WHERE name = p_name;
  CALL lk_settle(p_name, v_now, v_gate, v_capacity, v_used, v_waits, v_moves, v_drawn);
  COMMIT;
END
//
CREATE PROCEDURE lk_clear(p_session BINARY(16), p_wait INT, OUT o_left BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_name VARBINARY(512);
  DECLARE v_done INT DEFAULT 0;
  DECLARE found CURSOR FOR
    SELECT name FROM lk_ticket WHERE session = p_session
    UNION SELECT name FROM lk_gate WHERE session = p_session AND fence > 0 LIMIT 64;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = 1;
  OPEN found;
  clearing: LOOP
    FETCH found INTO v_name;
    IF v_done THEN LEAVE clearing; END IF;
    CALL lk_clear_line(v_name, p_session, p_wait);
    SET v_done = 0;
  END LOOP;
  CLOSE found;
  SELECT COUNT(*) INTO o_left FROM (
    SELECT 1 FROM lk_ticket WHERE session = p_session
    UNION ALL SELECT 1 FROM lk_gate WHERE session = p_session AND fence > 0) left_over;
END
//
CREATE PROCEDURE lk_close(p_session BINARY(16), p_stray BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_left BIGINT;
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  UPDATE lk_session SET expires = 0, dead_at = 0, ended = v_now, sweep_at = v_now + p_stray
    WHERE id = p_session AND ended = 0;
  CALL lk_clear(p_session, 1, v_left);
  SELECT v_left AS tickets;
END
//
CREATE PROCEDURE lk_sweep(p_stray BIGINT, p_idle BIGINT, p_after VARBINARY(512))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_left BIGINT;
  DECLARE v_session BINARY(16);
  DECLARE v_name, v_next VARBINARY(512) DEFAULT '';
  DECLARE v_done, v_idle, v_over INT DEFAULT 0;
  DECLARE dead CURSOR FOR SELECT id FROM lk_session WHERE sweep_at <= v_now LIMIT 4;
  DECLARE holds CURSOR FOR
    SELECT name FROM lk_ticket WHERE session IS NULL AND hold_until <= v_now
    UNION SELECT name FROM lk_gate WHERE session IS NULL AND hold_until <= v_now LIMIT 64;
  DECLARE found CURSOR FOR
    SELECT g.name, g.last < v_now - p_idle FROM lk_gate g WHERE g.name > p_after ORDER BY g.name LIMIT 64;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  DELETE FROM lk_closed WHERE until <= v_now LIMIT 64;
  OPEN dead;
  sessions: LOOP
    FETCH dead INTO v_session;
    IF v_done THEN LEAVE sessions; END IF;
    -- What somebody has locked is left for another time, and what lives is left alone.
    CALL lk_is_over(v_session, 1, v_now, 0, v_over);
    IF v_over IS NOT TRUE THEN
      SET v_done = 0;
      ITERATE sessions;
    END IF;
    CALL lk_end(v_session, v_now);
    CALL lk_clear(v_session, 0, v_left);
    IF v_left = 0 THEN
      -- An enter that was under way when the session ended has come to its end after so long.
      DELETE FROM lk_session WHERE id = v_session AND ended > 0 AND ended + p_stray <= v_now;
      UPDATE lk_session SET sweep_at = ended + p_stray WHERE id = v_session AND ended > 0;
    END IF;
    SET v_done = 0;
  END LOOP;
  CLOSE dead;
  SET v_done = 0;
  OPEN holds;
  holding: LOOP
    FETCH holds INTO v_name;
    IF v_done THEN LEAVE holding; END IF;
    CALL lk_open_line(v_name);
    SET v_done = 0;
  END LOOP;
  CLOSE holds;
  SET v_done = 0;
  OPEN found;
  idling: LOOP
    FETCH found INTO v_name, v_idle;
    IF v_done THEN LEAVE idling; END IF;
    SET v_next = v_name;
    IF v_idle THEN
      CALL lk_forget(v_name, v_now - p_idle);
      SET v_done = 0;
    END IF;
  END LOOP;
  CLOSE found;
  SELECT v_next AS next;
END
//
CREATE PROCEDURE lk_open_line(p_name VARBINARY(512))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_capacity, v_used, v_moves, v_drawn BIGINT;
  DECLARE v_gate, v_waits INT;
  DECLARE EXIT HANDLER FOR 1205, 3572 ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lk_take(p_name, 0, v_gate);
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  CALL lk_settle(p_name, v_now, v_gate, v_capacity, v_used, v_waits, v_moves, v_drawn);
  COMMIT;
END
//
CREATE PROCEDURE lk_forget(p_name VARBINARY(512), p_since BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_last, v_stray, v_number, v_fence, v_stand BIGINT;
  DECLARE v_gate INT;
  DECLARE EXIT HANDLER FOR 1205, 3572 ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lk_take(p_name, 0, v_gate);
  SELECT last, stray INTO v_last, v_stray FROM lk_line WHERE name = p_name;
  SELECT last, fence INTO v_number, v_fence FROM lk_gate WHERE name = p_name;
  SELECT COUNT(*) INTO v_stand FROM lk_ticket WHERE name = p_name;
  IF v_gate AND v_fence = 0 AND v_number < p_since AND v_last < p_since AND v_stray < p_since AND NOT v_stand THEN
    DELETE FROM lk_gate WHERE name = p_name;
    DELETE FROM lk_line WHERE name = p_name;
  END IF;
  COMMIT;
END
//
CREATE PROCEDURE lk_edit(
  p_name VARBINARY(512), p_ticket BINARY(16), p_session BINARY(16), p_cell INT, p_edit BIGINT,
  p_bytes MEDIUMBLOB, p_wait INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_fence, v_weight, v_capacity, v_note_edit, v_cell_edit, v_dead_at, v_seq BIGINT;
  DECLARE v_gate, v_first INT DEFAULT 0;
  DECLARE v_what VARCHAR(10) DEFAULT 'lost';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  CALL lk_take(p_name, p_wait, v_gate);
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  SELECT f.first, f.fence, f.weight, f.capacity, f.note_edit, f.cell_edit, s.dead_at
    INTO v_first, v_fence, v_weight, v_capacity, v_note_edit, v_cell_edit, v_dead_at
    FROM (SELECT 1 AS first, fence, weight, capacity, note_edit, cell_edit FROM lk_gate
        WHERE name = p_name AND id = p_ticket AND session = p_session AND fence > 0
      UNION ALL SELECT 0, fence, weight, capacity, note_edit, cell_edit FROM lk_ticket
        WHERE name = p_name AND id = p_ticket AND session = p_session AND fence > 0) f
    JOIN lk_session s ON s.id = p_session;
  IF v_dead_at > v_now AND (p_cell = 0 OR v_weight = v_capacity) THEN
    SET v_what = 'done';
    IF p_edit > IF(p_cell, v_cell_edit, v_note_edit) THEN
      IF v_first THEN
        SET v_seq = IF(v_gate, v_fence, NULL);
      ELSE
        CALL lk_take_ticket(p_name, p_ticket, v_seq);
      END IF;
      IF v_seq IS NULL THEN
        SET v_what = 'pinned';
      ELSE
        CALL lk_write(p_name, p_ticket, v_first, v_fence, p_cell, p_edit, p_bytes);
      END IF;
    END IF;
  END IF;
  COMMIT;
  SELECT v_what AS what, 0 AS fence;
END
//
CREATE PROCEDURE lk_write(
  p_name VARBINARY(512), p_ticket BINARY(16), p_first INT, p_fence BIGINT, p_cell INT, p_edit BIGINT,
  p_bytes MEDIUMBLOB)
SQL SECURITY INVOKER
BEGIN
  IF p_first THEN
    UPDATE lk_gate SET note = IF(p_cell, note, COALESCE(p_bytes, '')),
      note_edit = IF(p_cell, note_edit, p_edit), cell_edit = IF(p_cell, p_edit, cell_edit)
      WHERE name = p_name;
  ELSE
    UPDATE lk_ticket SET note = IF(p_cell, note, COALESCE(p_bytes, '')),
      note_edit = IF(p_cell, note_edit, p_edit), cell_edit = IF(p_cell, p_edit, cell_edit)
      WHERE name = p_name AND id = p_ticket;
  END IF;
  IF p_cell AND p_bytes IS NULL THEN
    DELETE FROM lk_cell WHERE name = p_name;
  ELSEIF p_cell THEN
    INSERT INTO lk_cell(name, bytes, fence) VALUES (p_name, p_bytes, p_fence)
      ON DUPLICATE KEY UPDATE bytes = p_bytes, fence = p_fence;
  END IF;
END
//
CREATE PROCEDURE lk_in_transaction()
SQL SECURITY INVOKER
BEGIN
  DECLARE EXIT HANDLER FOR 1305
    SIGNAL SQLSTATE 'LK004' SET MESSAGE_TEXT = 'there is no transaction; begin one first';
  SAVEPOINT lk_here;
  RELEASE SAVEPOINT lk_here;
END
//
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
        AND IF(t.session IS NULL, t.hold_until, COALESCE(s.dead_at, 0)) > p_now) INTO o_held;
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
CREATE PROCEDURE lk_row_do(p_sql TEXT, p_table VARCHAR(128), p_column VARCHAR(64))
SQL SECURITY INVOKER
BEGIN
  SET @lk_sql = REPLACE(REPLACE(p_sql, '{column}', CONCAT('`', REPLACE(p_column, '`', '``'), '`')),
    '{table}', CONCAT('`', REPLACE(REPLACE(p_table, '`', '``'), '.', '`.`'), '`'));
  PREPARE lk_statement FROM @lk_sql;
END
//
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
INSERT INTO lk_meta(id, layout, store) VALUES (1, 3, UNHEX('0123456789abcdef'))
//
DELIMITER ;
