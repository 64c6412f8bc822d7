-- The operations on sessions, on what belongs to held tickets, and the sweep.

-- Opens a session; opening it again changes nothing.
-- -> now, whether it is over, ttl, delay, expires, the store
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

-- Renews a session. Does not wait for its row, so that no other renewal waits behind this one.
-- -> whether it lives and until when, its evictions, its tickets (how many, and the sum of the first four bytes
--  of their ids), whether there is something to sweep, now, which store of which layout, on which server, and
--  when that was started
CREATE PROCEDURE lk_renew(p_session BINARY(16))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_expires, v_evictions, v_until, v_count, v_sum, v_uptime BIGINT;
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
  SELECT COUNT(*), CAST(COALESCE(SUM(n), 0) AS SIGNED) INTO v_count, v_sum FROM (
    SELECT CAST(CONV(HEX(LEFT(id, 4)), 16, 10) AS UNSIGNED) AS n FROM lk_ticket WHERE session = p_session
    UNION ALL SELECT CAST(CONV(HEX(LEFT(id, 4)), 16, 10) AS UNSIGNED) FROM lk_gate
      WHERE session = p_session AND fence > 0) stands;
  /*!80001 SELECT variable_value INTO v_uptime FROM performance_schema.global_status WHERE variable_name = 'Uptime'; */
  /*M! SELECT variable_value INTO v_uptime FROM information_schema.global_status WHERE variable_name = 'UPTIME'; */
  SELECT COALESCE(v_expires, 0) > v_now AS lives, COALESCE(v_evictions, 0) AS evictions,
    COALESCE(v_until, 0) AS expires, v_count AS tickets, v_sum AS ticket_sum,
    EXISTS (SELECT 1 FROM lk_session WHERE sweep_at <= v_now)
      OR EXISTS (SELECT 1 FROM lk_closed WHERE until <= v_now)
      OR EXISTS (SELECT 1 FROM lk_ticket WHERE session IS NULL AND hold_until <= v_now)
      OR EXISTS (SELECT 1 FROM lk_gate WHERE session IS NULL AND hold_until <= v_now) AS leftovers,
    v_now AS now, (SELECT store FROM lk_meta WHERE id = 1) AS store,
    (SELECT layout FROM lk_meta WHERE id = 1) AS layout,
    CONCAT_WS(':', @@hostname, @@port, @@server_id /*!80001 , @@server_uuid */) AS server,
    COALESCE(v_now - v_uptime * 1000000, 0) AS started;
END
//

-- Takes the tickets of an ended session out of one of its lines, unless another transaction has locked what is
-- needed for that. Once the line is locked, nothing is waited for; a locked ticket is not even asked for again.
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

-- Takes the tickets of an ended session out of some of its lines.  o_left: how many are left
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

-- Ends a session and clears some of its lines.  -> how many tickets are left
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

-- Clears a few leftovers away: dead sessions and their tickets, holds that are over, closed tickets,
-- and lines after p_after that have been idle for so long.  -> where to go on with the lines
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

-- Lets a line move, unless another transaction has locked it.
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

-- Forgets a line that is empty and has granted nothing since.
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

-- Changes the note of a held ticket (p_cell = 0) or the cell of its name (p_cell = 1, and the ticket is
-- exclusive). Ownership check and write are one step.  -> done | lost | pinned
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

-- The writing part of lk_edit, for a ticket that is held and whose row is ours.
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
