-- Brings the tables of an older layout up to date, step by step. Each step looks at the tables themselves, so one
-- that was broken off is done again.

-- Refuses tables of a newer layout, before anything is changed.
CREATE PROCEDURE lk_refuse_newer(p_layout INT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_layout INT;
  SELECT MAX(layout) INTO v_layout FROM lk_meta;
  IF v_layout > p_layout THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the tables were made by a newer lockkeeper';
  END IF;
END
//

-- Runs a statement that names what other layouts have not.
CREATE PROCEDURE lk_upgrade_do(p_sql TEXT)
SQL SECURITY INVOKER
BEGIN
  SET @lk_upgrade = p_sql;
  PREPARE lk_upgrade FROM @lk_upgrade;
  EXECUTE lk_upgrade;
  DEALLOCATE PREPARE lk_upgrade;
END
//

-- Comes before the procedures are made anew, and does what the older ones do not notice. A missing right
-- shows here, where nothing has been changed yet. A table that has what it should is not touched: the server makes all
-- other requests wait behind a change of a table that a transaction has read.
CREATE PROCEDURE lk_upgrade_first()
SQL SECURITY INVOKER
BEGIN
  DECLARE v_layout, v_first, v_digest INT DEFAULT 0;
  SELECT COALESCE(MAX(layout), 0) INTO v_layout FROM lk_meta;
  SELECT COUNT(*) INTO v_first FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'lk_gate' AND column_name = 'fence';
  SELECT COUNT(*) INTO v_digest FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'lk_meta' AND column_name = 'script';
  IF v_layout BETWEEN 1 AND 2 THEN CALL lk_upgrade_do('DROP TABLE IF EXISTS lk_line_old, lk_line_new'); END IF;
  IF NOT v_digest THEN
    CALL lk_upgrade_do('ALTER TABLE lk_meta ADD script BINARY(8) NOT NULL DEFAULT ''''');
  END IF;
  IF v_layout BETWEEN 1 AND 2 AND NOT v_first THEN
    CALL lk_upgrade_do('ALTER TABLE lk_gate
      MODIFY last BIGINT NOT NULL DEFAULT 0,
      ADD crowd TINYINT NOT NULL DEFAULT 0, ADD fence BIGINT NOT NULL DEFAULT 0,
      ADD id BINARY(16) NOT NULL DEFAULT '''', ADD session BINARY(16) NULL DEFAULT '''',
      ADD weight INT UNSIGNED NOT NULL DEFAULT 1, ADD capacity INT UNSIGNED NOT NULL DEFAULT 1,
      ADD hold_until BIGINT NOT NULL DEFAULT 0, ADD note_edit BIGINT NOT NULL DEFAULT 0,
      ADD cell_edit BIGINT NOT NULL DEFAULT 0, ADD note VARBINARY(4096) NOT NULL DEFAULT '''',
      ADD KEY lk_gate_session (session)');
  END IF;
END
//

-- Comes after the procedures were made anew. The older ones cannot run any more, and the new
-- ones fail, and change nothing in a line, until lk_line is as they need it.
CREATE PROCEDURE lk_upgrade()
SQL SECURITY INVOKER
BEGIN
  DECLARE v_layout, v_swept INT DEFAULT 0;
  SELECT COALESCE(MAX(layout), 0) INTO v_layout FROM lk_meta;
  SELECT COUNT(*) INTO v_swept FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'lk_session' AND index_name = 'lk_session_sweep';
  IF v_layout BETWEEN 1 AND 2 THEN
    -- Layouts 1 and 2 had all tickets in lk_ticket, which a line of layout 3 may have too.
    -- The new lk_line is made beside the old one, and takes its place in one step.
    CALL lk_upgrade_do('DROP TABLE IF EXISTS lk_line_old, lk_line_new');
    CALL lk_upgrade_do('CREATE TABLE lk_line_new(
      name VARBINARY(512) NOT NULL PRIMARY KEY, last BIGINT NOT NULL DEFAULT 0,
      standing BIGINT NOT NULL DEFAULT 0, min_fence BIGINT NOT NULL DEFAULT 1,
      min_seq BIGINT NOT NULL DEFAULT 0, stray BIGINT NOT NULL DEFAULT 0,
      blind TINYINT NOT NULL DEFAULT 0) ENGINE = InnoDB');
    CALL lk_upgrade_do('INSERT INTO lk_line_new(name, last, standing)
      SELECT n.name, GREATEST(MAX(n.last), COALESCE(MAX(t.seq), 0)), COUNT(DISTINCT t.id)
      FROM (SELECT name, last FROM lk_line UNION ALL SELECT DISTINCT name, 0 FROM lk_ticket) n
      LEFT JOIN lk_ticket t ON t.name = n.name GROUP BY n.name');
    CALL lk_upgrade_do('RENAME TABLE lk_line TO lk_line_old, lk_line_new TO lk_line');
    CALL lk_upgrade_do('DROP TABLE lk_line_old');
    CALL lk_upgrade_do('INSERT IGNORE INTO lk_gate(name) SELECT DISTINCT name FROM lk_ticket');
    CALL lk_upgrade_do('UPDATE lk_gate g
      JOIN (SELECT name, MAX(fence) AS last FROM lk_ticket GROUP BY name) t ON t.name = g.name
      SET g.last = GREATEST(g.last, t.last), g.crowd = 1');
    IF v_swept THEN CALL lk_upgrade_do('ALTER TABLE lk_session DROP KEY lk_session_sweep'); END IF;
    UPDATE lk_meta SET layout = 3 WHERE id = 1;
  END IF;
END
//
