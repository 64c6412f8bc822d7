-- Layout 1, as it was made. Tests upgrade from it: it never changes.
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
  program   VARBINARY(64) NOT NULL,
  KEY lk_session_sweep (sweep_at)
) ENGINE = InnoDB
//
CREATE TABLE IF NOT EXISTS lk_line(
  name VARBINARY(512) NOT NULL PRIMARY KEY,
  last BIGINT         NOT NULL
) ENGINE = InnoDB
//
CREATE TABLE IF NOT EXISTS lk_gate(
  name VARBINARY(512) NOT NULL PRIMARY KEY,
  last BIGINT         NOT NULL
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
CREATE PROCEDURE lk_take_line(p_name VARBINARY(512), OUT o_last BIGINT)
SQL SECURITY INVOKER
BEGIN
  SELECT last INTO o_last FROM lk_line WHERE name = p_name FOR UPDATE;
  IF o_last IS NULL THEN
    INSERT INTO lk_line(name, last) VALUES (p_name, 0) ON DUPLICATE KEY UPDATE last = last;
    SELECT last INTO o_last FROM lk_line WHERE name = p_name FOR UPDATE;
  END IF;
END
//
CREATE PROCEDURE lk_take_gate(p_name VARBINARY(512), OUT o_last BIGINT)
SQL SECURITY INVOKER
BEGIN
  SELECT last INTO o_last FROM lk_gate WHERE name = p_name FOR UPDATE SKIP LOCKED;
  IF o_last IS NULL AND NOT EXISTS (SELECT 1 FROM lk_gate WHERE name = p_name) THEN
    INSERT INTO lk_gate(name, last) VALUES (p_name, 0) ON DUPLICATE KEY UPDATE last = last;
    SELECT last INTO o_last FROM lk_gate WHERE name = p_name FOR UPDATE;
  END IF;
END
//
CREATE PROCEDURE lk_end(p_session BINARY(16), p_now BIGINT)
SQL SECURITY INVOKER
BEGIN
  UPDATE lk_session SET expires = 0, dead_at = 0, ended = p_now, sweep_at = p_now
    WHERE id = p_session AND dead_at <= p_now AND ended = 0;
END
//
CREATE PROCEDURE lk_bury(p_name VARBINARY(512), p_now BIGINT, OUT o_stay BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_id, v_session BINARY(16);
  DECLARE v_weight, v_seq, v_dead_at BIGINT;
  DECLARE v_done INT DEFAULT 0;
  DECLARE dead CURSOR FOR
    SELECT t.id, t.session, t.weight FROM lk_ticket t LEFT JOIN lk_session s ON s.id = t.session
    WHERE t.name = p_name AND t.fence > 0
      AND IF(t.session IS NULL, t.hold_until, COALESCE(s.dead_at, 0)) <= p_now
    ORDER BY t.session;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = 1;
  SET o_stay = 0;
  OPEN dead;
  burial: LOOP
    FETCH dead INTO v_id, v_session, v_weight;
    IF v_done THEN LEAVE burial; END IF;
    SET v_seq = NULL, v_dead_at = NULL;
    SELECT seq INTO v_seq FROM lk_ticket WHERE name = p_name AND id = v_id FOR UPDATE SKIP LOCKED;
    SELECT dead_at INTO v_dead_at FROM lk_session WHERE id = v_session FOR UPDATE;
    IF v_seq IS NULL OR v_dead_at > p_now THEN
      SET o_stay = o_stay + v_weight;
    ELSE
      DELETE FROM lk_ticket WHERE name = p_name AND id = v_id;
      CALL lk_end(v_session, p_now);
    END IF;
    SET v_done = 0;
  END LOOP;
  CLOSE dead;
END
//
CREATE PROCEDURE lk_settle(
  p_name VARBINARY(512), p_now BIGINT, p_last BIGINT,
  OUT o_capacity BIGINT, OUT o_used BIGINT, OUT o_waits INT, OUT o_moves BIGINT, OUT o_drawn BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_id, v_session BINARY(16);
  DECLARE v_expires, v_dead_at, v_weight, v_capacity, v_gate, v_fence, v_dead, v_stay BIGINT;
  SET o_waits = 0, o_drawn = 0;
  SELECT COALESCE(MAX(IF(e.ends > p_now, e.capacity, 0)), 0),
      COALESCE(SUM(IF(e.ends > p_now, e.weight, 0)), 0),
      MIN(IF(e.ends > p_now, e.ends, NULL)), COALESCE(SUM(e.ends <= p_now), 0), MAX(e.capacity)
    INTO o_capacity, o_used, o_moves, v_dead, v_capacity
    FROM (SELECT t.weight, t.capacity,
        IF(t.session IS NULL, t.hold_until, COALESCE(s.dead_at, 0)) AS ends
      FROM lk_ticket t LEFT JOIN lk_session s ON s.id = t.session
      WHERE t.name = p_name AND t.fence > 0) e;
  IF v_dead > 0 THEN
    CALL lk_bury(p_name, p_now, v_stay);
    IF v_stay > 0 THEN
      SET o_capacity = v_capacity, o_used = o_used + v_stay, o_moves = p_now + 100000;
    END IF;
  END IF;
  grants: LOOP
    SET v_id = NULL, v_expires = NULL, v_dead_at = NULL;
    SELECT t.id, t.session, t.weight, t.capacity, s.expires, s.dead_at
      INTO v_id, v_session, v_weight, v_capacity, v_expires, v_dead_at
      FROM lk_ticket t LEFT JOIN lk_session s ON s.id = t.session
      WHERE t.name = p_name AND t.fence = 0 ORDER BY t.seq LIMIT 1;
    IF v_id IS NULL THEN LEAVE grants; END IF;
    IF COALESCE(v_expires, 0) <= p_now THEN
      SET v_expires = NULL;
      SELECT expires, dead_at INTO v_expires, v_dead_at FROM lk_session WHERE id = v_session FOR UPDATE;
      IF COALESCE(v_expires, 0) <= p_now THEN
        -- The session may only be expired: its held tickets have their lock-delay.
        DELETE FROM lk_ticket WHERE name = p_name AND id = v_id;
        CALL lk_end(v_session, p_now);
        ITERATE grants;
      END IF;
    END IF;
    IF o_capacity = 0 THEN SET o_capacity = v_capacity; END IF;
    IF o_used + v_weight > o_capacity THEN
      SET o_waits = 1;
      LEAVE grants;
    END IF;
    IF o_drawn = 0 THEN
      CALL lk_take_gate(p_name, v_gate);
      IF v_gate IS NULL THEN
        SET o_waits = 1, o_moves = p_now + 100000;
        LEAVE grants;
      END IF;
    END IF;
    SET v_fence = GREATEST(v_gate + 1, p_last + 1, p_now);
    SET v_gate = v_fence;
    IF o_drawn = 0 THEN SET o_drawn = v_fence; END IF;
    UPDATE lk_ticket SET fence = v_fence, granted = p_now WHERE name = p_name AND id = v_id;
    SET o_used = o_used + v_weight, o_moves = LEAST(COALESCE(o_moves, v_dead_at), v_dead_at);
  END LOOP;
  IF o_drawn > 0 THEN UPDATE lk_gate SET last = v_gate WHERE name = p_name; END IF;
END
//
CREATE PROCEDURE lk_answer_wait(
  p_what VARCHAR(10), p_name VARBINARY(512), p_now BIGINT, p_seq BIGINT, p_moves BIGINT)
SQL SECURITY INVOKER
BEGIN
  SELECT p_what AS what, 0 AS fence,
    (SELECT COUNT(*) FROM lk_ticket WHERE name = p_name AND fence > 0)
      + (SELECT COUNT(*) FROM lk_ticket WHERE name = p_name AND fence = 0 AND seq < p_seq) AS ahead,
    COALESCE(p_moves - p_now, 0) AS recheck, h.host, h.pid, h.program, h.note, p_now - h.granted AS held_for
  FROM (SELECT 1 AS one) o LEFT JOIN (
    SELECT 1 AS one, s.host, s.pid, s.program, t.note, t.granted FROM lk_ticket t JOIN lk_session s ON s.id = t.session
    WHERE t.name = p_name AND t.fence > 0 ORDER BY t.fence LIMIT 1) h ON h.one = o.one;
END
//
CREATE PROCEDURE lk_enter(
  p_name VARBINARY(512), p_ticket BINARY(16), p_session BINARY(16), p_weight BIGINT, p_capacity BIGINT,
  p_queue INT, p_deadline BIGINT, p_most BIGINT, p_note VARBINARY(4096))
SQL SECURITY INVOKER
enter: BEGIN
  DECLARE v_now, v_last, v_gate, v_number, v_expires, v_capacity, v_moves, v_seq, v_fence BIGINT;
  DECLARE v_used, v_drawn, v_ahead BIGINT DEFAULT 0;
  DECLARE v_closed, v_stand, v_waits INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE;
  IF v_last IS NULL THEN CALL lk_take_line(p_name, v_last); END IF;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  IF v_now > p_deadline THEN
    ROLLBACK;
    SELECT 'late' AS what, v_now AS fence;
    LEAVE enter;
  END IF;
  SELECT s.expires, EXISTS (SELECT 1 FROM lk_closed WHERE ticket = p_ticket AND session = p_session),
      EXISTS (SELECT 1 FROM lk_ticket WHERE name = p_name)
    INTO v_expires, v_closed, v_stand FROM lk_session s WHERE s.id = p_session;
  IF COALESCE(v_expires, 0) <= v_now OR v_closed THEN
    ROLLBACK;
    SELECT IF(COALESCE(v_expires, 0) <= v_now, 'over', 'closed') AS what, 0 AS fence;
    LEAVE enter;
  END IF;
  IF v_stand THEN
    CALL lk_settle(p_name, v_now, v_last, v_capacity, v_used, v_waits, v_moves, v_drawn);
    SELECT seq, fence INTO v_seq, v_fence FROM lk_ticket
      WHERE name = p_name AND id = p_ticket AND session = p_session;
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
    END IF;
  END IF;
  IF NOT v_waits AND v_used + p_weight <= p_capacity THEN
    SELECT last INTO v_gate FROM lk_gate WHERE name = p_name FOR UPDATE SKIP LOCKED;
    IF v_gate IS NULL THEN CALL lk_take_gate(p_name, v_gate); END IF;
    IF v_gate IS NOT NULL THEN
      SET v_number = GREATEST(v_gate + 1, v_last + 1, v_now);
      UPDATE lk_gate SET last = v_number WHERE name = p_name;
      INSERT INTO lk_ticket(name, id, session, seq, weight, capacity, fence, entered, granted, note)
        VALUES (p_name, p_ticket, p_session, v_number, p_weight, p_capacity, v_number, v_now, v_now, p_note);
      COMMIT;
      SELECT 'granted' AS what, v_number AS fence;
      LEAVE enter;
    END IF;
    SET v_moves = v_now + 100000;
  END IF;
  IF NOT p_queue THEN
    COMMIT;
    CALL lk_answer_wait('busy', p_name, v_now, 9223372036854775807, v_moves);
    LEAVE enter;
  END IF;
  SELECT COUNT(*) INTO v_ahead FROM lk_ticket WHERE name = p_name;
  IF v_ahead >= p_most THEN
    COMMIT;
    SELECT 'full' AS what, 0 AS fence;
    LEAVE enter;
  END IF;
  SELECT COALESCE(MAX(last), 0) INTO v_gate FROM lk_gate WHERE name = p_name;
  SET v_number = GREATEST(v_last + 1, v_gate + 1, v_now);
  UPDATE lk_line SET last = v_number WHERE name = p_name;
  INSERT INTO lk_ticket(name, id, session, seq, weight, capacity, entered, note)
    VALUES (p_name, p_ticket, p_session, v_number, p_weight, p_capacity, v_now, p_note);
  COMMIT;
  CALL lk_answer_wait('queued', p_name, v_now, v_number, v_moves);
END
//
CREATE PROCEDURE lk_leave(
  p_name VARBINARY(512), p_ticket BINARY(16), p_session BINARY(16), p_keep BIGINT, p_stray BIGINT)
SQL SECURITY INVOKER
leaving: BEGIN
  DECLARE v_now, v_last, v_fence, v_seq, v_capacity, v_used, v_moves BIGINT;
  DECLARE v_drawn BIGINT DEFAULT 0;
  DECLARE v_stand, v_waits INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE;
  IF v_last IS NULL AND p_stray > 0 THEN CALL lk_take_line(p_name, v_last); END IF;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  SELECT seq, fence INTO v_seq, v_fence FROM lk_ticket
    WHERE name = p_name AND id = p_ticket AND session = p_session FOR UPDATE SKIP LOCKED;
  IF v_seq IS NULL
      AND EXISTS (SELECT 1 FROM lk_ticket WHERE name = p_name AND id = p_ticket AND session = p_session) THEN
    ROLLBACK;
    SELECT 'pinned' AS what, 0 AS fence;
    LEAVE leaving;
  END IF;
  IF p_stray > 0 THEN
    INSERT INTO lk_closed(ticket, session, until) VALUES (p_ticket, p_session, v_now + p_stray)
      ON DUPLICATE KEY UPDATE until = v_now + p_stray;
  END IF;
  IF v_seq IS NULL THEN
    COMMIT;
    SELECT 'gone' AS what, 0 AS fence;
    LEAVE leaving;
  END IF;
  IF p_keep > 0 AND v_fence > 0 THEN
    UPDATE lk_ticket SET session = NULL, hold_until = v_now + p_keep WHERE name = p_name AND id = p_ticket;
  ELSE
    DELETE FROM lk_ticket WHERE name = p_name AND id = p_ticket;
    SELECT EXISTS (SELECT 1 FROM lk_ticket WHERE name = p_name) INTO v_stand;
    IF v_stand THEN
      CALL lk_settle(p_name, v_now, v_last, v_capacity, v_used, v_waits, v_moves, v_drawn);
    END IF;
  END IF;
  COMMIT;
  SELECT IF(v_fence > 0, 'released', 'withdrawn') AS what, v_drawn AS fence;
END
//
CREATE PROCEDURE lk_evict(p_name VARBINARY(512), p_ticket BINARY(16))
SQL SECURITY INVOKER
evicting: BEGIN
  DECLARE v_now, v_last, v_seq, v_capacity, v_used, v_moves, v_drawn BIGINT;
  DECLARE v_session BINARY(16);
  DECLARE v_waits INT;
  DECLARE v_what VARCHAR(10) DEFAULT 'gone';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE;
  IF v_last IS NOT NULL THEN
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    CALL lk_settle(p_name, v_now, v_last, v_capacity, v_used, v_waits, v_moves, v_drawn);
    SELECT seq, session INTO v_seq, v_session FROM lk_ticket
      WHERE name = p_name AND id = p_ticket FOR UPDATE SKIP LOCKED;
    IF v_seq IS NOT NULL THEN
      DELETE FROM lk_ticket WHERE name = p_name AND id = p_ticket;
      UPDATE lk_session SET evictions = evictions + 1 WHERE id = v_session;
      CALL lk_settle(p_name, v_now, v_last, v_capacity, v_used, v_waits, v_moves, v_drawn);
      SET v_what = 'evicted';
    ELSEIF EXISTS (SELECT 1 FROM lk_ticket WHERE name = p_name AND id = p_ticket) THEN
      SET v_what = 'pinned';
    END IF;
  END IF;
  COMMIT;
  SELECT v_what AS what, 0 AS fence;
END
//
CREATE PROCEDURE lk_stand(p_name VARBINARY(512), p_ticket BINARY(16), p_session BINARY(16))
SQL SECURITY INVOKER
standing: BEGIN
  DECLARE v_now, v_last, v_fence, v_seq, v_capacity, v_used, v_moves, v_drawn BIGINT;
  DECLARE v_due, v_waits INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  SELECT seq, fence INTO v_seq, v_fence FROM lk_ticket
    WHERE name = p_name AND id = p_ticket AND session = p_session;
  IF v_fence = 0 THEN
    SELECT COALESCE(MIN(e.ends), 0), COALESCE(SUM(e.weight), 0) INTO v_moves, v_used
      FROM (SELECT t.weight, IF(t.session IS NULL, t.hold_until, COALESCE(s.dead_at, 0)) AS ends
        FROM lk_ticket t LEFT JOIN lk_session s ON s.id = t.session
        WHERE t.name = p_name AND t.fence > 0) e;
    SELECT v_moves <= v_now OR COALESCE(s.expires, 0) <= v_now OR v_used + t.weight <= t.capacity
      INTO v_due FROM lk_ticket t LEFT JOIN lk_session s ON s.id = t.session
      WHERE t.name = p_name AND t.fence = 0 ORDER BY t.seq LIMIT 1;
    IF v_due THEN
      SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
      START TRANSACTION;
      SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE SKIP LOCKED;
      IF v_last IS NOT NULL THEN
        SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
        CALL lk_settle(p_name, v_now, v_last, v_capacity, v_used, v_waits, v_moves, v_drawn);
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
  SELECT v_now AS now, ended > 0 AS is_over, ttl, delay FROM lk_session WHERE id = p_session;
END
//
CREATE PROCEDURE lk_renew(p_session BINARY(16))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_expires, v_evictions BIGINT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT expires, evictions INTO v_expires, v_evictions FROM lk_session WHERE id = p_session FOR UPDATE;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  IF v_expires > v_now THEN
    UPDATE lk_session SET expires = v_now + ttl, dead_at = v_now + ttl + delay,
      sweep_at = v_now + ttl + delay WHERE id = p_session;
  END IF;
  COMMIT;
  SELECT COALESCE(v_expires, 0) > v_now AS lives, COALESCE(v_evictions, 0) AS evictions,
    EXISTS (SELECT 1 FROM lk_session WHERE sweep_at <= v_now)
      OR EXISTS (SELECT 1 FROM lk_closed WHERE until <= v_now)
      OR EXISTS (SELECT 1 FROM lk_ticket WHERE session IS NULL AND hold_until <= v_now) AS leftovers,
    v_now AS now;
END
//
CREATE PROCEDURE lk_clear(p_session BINARY(16), OUT o_left BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_name VARBINARY(512);
  DECLARE v_now, v_last, v_capacity, v_used, v_moves, v_drawn BIGINT;
  DECLARE v_waits, v_done INT DEFAULT 0;
  DECLARE found CURSOR FOR SELECT DISTINCT name FROM lk_ticket WHERE session = p_session LIMIT 64;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_done = 1;
  OPEN found;
  clearing: LOOP
    FETCH found INTO v_name;
    IF v_done THEN LEAVE clearing; END IF;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL lk_take_line(v_name, v_last);
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    DELETE FROM lk_ticket WHERE name = v_name AND session = p_session AND fence = 0;
    CALL lk_settle(v_name, v_now, v_last, v_capacity, v_used, v_waits, v_moves, v_drawn);
    COMMIT;
    SET v_done = 0;
  END LOOP;
  CLOSE found;
  SELECT COUNT(*) INTO o_left FROM lk_ticket WHERE session = p_session;
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
  CALL lk_clear(p_session, v_left);
  SELECT v_left AS tickets;
END
//
CREATE PROCEDURE lk_sweep(p_stray BIGINT, p_idle BIGINT, p_after VARBINARY(512))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_last, v_capacity, v_used, v_moves, v_drawn, v_left BIGINT;
  DECLARE v_session BINARY(16);
  DECLARE v_name, v_next VARBINARY(512) DEFAULT '';
  DECLARE v_waits, v_done, v_idle INT DEFAULT 0;
  DECLARE dead CURSOR FOR SELECT id FROM lk_session WHERE sweep_at <= v_now LIMIT 4;
  DECLARE holds CURSOR FOR
    SELECT DISTINCT name FROM lk_ticket WHERE session IS NULL AND hold_until <= v_now LIMIT 64;
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
    CALL lk_end(v_session, v_now);
    CALL lk_clear(v_session, v_left);
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
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL lk_take_line(v_name, v_last);
    CALL lk_settle(v_name, v_now, v_last, v_capacity, v_used, v_waits, v_moves, v_drawn);
    COMMIT;
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
CREATE PROCEDURE lk_forget(p_name VARBINARY(512), p_since BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_last, v_gate BIGINT;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE SKIP LOCKED;
  SELECT last INTO v_gate FROM lk_gate WHERE name = p_name FOR UPDATE SKIP LOCKED;
  IF v_gate < p_since AND COALESCE(v_last, 0) < p_since
      AND NOT EXISTS (SELECT 1 FROM lk_ticket WHERE name = p_name) THEN
    DELETE FROM lk_gate WHERE name = p_name;
    DELETE FROM lk_line WHERE name = p_name;
  END IF;
  COMMIT;
END
//
CREATE PROCEDURE lk_edit(
  p_name VARBINARY(512), p_ticket BINARY(16), p_session BINARY(16), p_cell INT, p_edit BIGINT,
  p_bytes MEDIUMBLOB)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_fence, v_weight, v_capacity, v_note_edit, v_cell_edit, v_dead_at, v_last BIGINT;
  DECLARE v_what VARCHAR(10) DEFAULT 'lost';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT last INTO v_last FROM lk_line WHERE name = p_name FOR UPDATE;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  SELECT t.fence, t.weight, t.capacity, t.note_edit, t.cell_edit, s.dead_at
    INTO v_fence, v_weight, v_capacity, v_note_edit, v_cell_edit, v_dead_at
    FROM lk_ticket t JOIN lk_session s ON s.id = t.session
    WHERE t.name = p_name AND t.id = p_ticket AND t.session = p_session AND t.fence > 0;
  IF v_dead_at > v_now AND (p_cell = 0 OR v_weight = v_capacity) THEN
    SET v_what = 'done';
    IF p_edit > IF(p_cell, v_cell_edit, v_note_edit) THEN
      SET v_last = NULL;
      SELECT seq INTO v_last FROM lk_ticket WHERE name = p_name AND id = p_ticket FOR UPDATE SKIP LOCKED;
      IF v_last IS NULL THEN
        SET v_what = 'pinned';
      ELSEIF NOT p_cell THEN
        UPDATE lk_ticket SET note = COALESCE(p_bytes, ''), note_edit = p_edit
          WHERE name = p_name AND id = p_ticket;
      ELSE
        UPDATE lk_ticket SET cell_edit = p_edit WHERE name = p_name AND id = p_ticket;
        IF p_bytes IS NULL THEN
          DELETE FROM lk_cell WHERE name = p_name;
        ELSE
          INSERT INTO lk_cell(name, bytes, fence) VALUES (p_name, p_bytes, v_fence)
            ON DUPLICATE KEY UPDATE bytes = p_bytes, fence = v_fence;
        END IF;
      END IF;
    END IF;
  END IF;
  COMMIT;
  SELECT v_what AS what, 0 AS fence;
END
//
CREATE PROCEDURE lk_lock(p_name VARBINARY(512), p_wait_ms BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_until, v_gate, v_seen, v_stay BIGINT;
  DECLARE v_held INT DEFAULT 1;
  CALL lk_now(v_now);
  SET v_until = v_now + p_wait_ms * 1000;
  -- Nobody is overtaken who stands in line already.
  waiting: LOOP
    SELECT EXISTS (
      SELECT 1 FROM lk_ticket t LEFT JOIN lk_session s ON s.id = t.session
      WHERE t.name = p_name AND IF(t.session IS NULL, t.hold_until, COALESCE(s.dead_at, 0)) > v_now)
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
    CALL lk_bury(p_name, v_now, v_stay);
    SELECT EXISTS (SELECT 1 FROM lk_ticket WHERE name = p_name AND fence > 0) INTO v_held;
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
CREATE PROCEDURE lk_fence_check(
  p_store BINARY(8), p_name VARBINARY(512), p_ticket BINARY(16), p_fence BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_fence BIGINT;
  SELECT fence INTO v_fence FROM lk_ticket
    WHERE name = p_name AND id = p_ticket AND session IS NOT NULL LOCK IN SHARE MODE;
  IF p_fence <= 0 OR v_fence IS NULL OR v_fence <> p_fence
      OR NOT EXISTS (SELECT 1 FROM lk_meta WHERE id = 1 AND store = COALESCE(p_store, store)) THEN
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
INSERT INTO lk_meta(id, layout, store) VALUES (1, 1, UNHEX('0123456789abcdef'))
//
DELIMITER ;
