-- The tables of the MySQL and MariaDB store, when all that is older has been brought up to date.

-- A session lives while now < expires, and its tickets stand until dead_at = expires + delay.
-- Both are 0 once it has been ended, at `ended`. The row stays for a while after that, so that an
-- enter which was under way finds it ended and not unknown. No index on times: every renewal would leave
-- an entry behind in it.
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

-- A request that changes a line locks its row here. `last` is the last place given to a ticket that had to wait,
-- `standing` how many tickets are in lk_ticket. No fence below min_fence and no place below min_seq is in use there:
-- what was there is deleted, but stays in the indexes for as long as the oldest transaction of the
-- server can see it, and must not be walked over again and again. Until `stray` a copy of an enter may come
-- whose ticket was left; `blind` says that a ticket has come while the gate could not be locked.
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

-- The first ticket of a line, as long as fence is not 0, and the last fence. A lock that no other ticket
-- wants is this row alone, changed in place. session is NULL for a hold that has outlived its session,
-- until hold_until; of a ticket that is gone it may stay.
--
-- A grant locks the line's gate. `crowd` says that tickets are in lk_ticket, or that a copy of
-- an enter may come late: then the whole procedures decide, and not one statement. A user's transaction
-- that holds the lock (lk_lock) has locked the gate, and not the line, so tickets can queue meanwhile.
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

-- A place behind the first. fence and granted are 0 while it waits. session is NULL for a hold that has
-- outlived its session, until hold_until.
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

-- Tickets that were left while a copy of their enter may still be under way.
CREATE TABLE IF NOT EXISTS lk_closed(
  ticket  BINARY(16) NOT NULL,
  session BINARY(16) NOT NULL,
  until   BIGINT     NOT NULL,
  PRIMARY KEY (ticket, session),
  KEY lk_closed_until (until)
) ENGINE = InnoDB
//

-- The values that belong to names.
CREATE TABLE IF NOT EXISTS lk_cell(
  name  VARBINARY(512) NOT NULL PRIMARY KEY,
  bytes MEDIUMBLOB     NOT NULL,
  fence BIGINT         NOT NULL
) ENGINE = InnoDB
//
