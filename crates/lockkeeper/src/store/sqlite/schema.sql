-- One file of locks. Times are microseconds of the clock that counts suspend (CLOCK_BOOTTIME), so
-- they mean nothing after a reboot: `boot` says which boot they belong to.

-- What this file is, and the last number given out: a ticket's place and a grant's fence come from
-- the same counter, which never falls below the wall clock in microseconds.
CREATE TABLE meta(
  id    INTEGER PRIMARY KEY CHECK (id = 1),
  store BLOB    NOT NULL,
  boot  TEXT    NOT NULL,
  last  INTEGER NOT NULL
);

-- A session lives while now < expires, and its tickets stand until dead_at = expires + delay.
-- Both are 0 once it has been ended; the row stays until its last ticket has been cleared away.
CREATE TABLE session(
  id        BLOB    PRIMARY KEY,
  ttl       INTEGER NOT NULL,
  delay     INTEGER NOT NULL,
  expires   INTEGER NOT NULL,
  dead_at   INTEGER NOT NULL,
  evictions INTEGER NOT NULL DEFAULT 0,
  bell      TEXT    NOT NULL,
  host      TEXT    NOT NULL,
  pid       INTEGER NOT NULL,
  program   TEXT    NOT NULL
) WITHOUT ROWID;

-- A place in a line. session is NULL for a hold that has outlived its session, until hold_until.
CREATE TABLE ticket(
  name       TEXT    NOT NULL,
  seq        INTEGER NOT NULL,
  id         BLOB    NOT NULL,
  session    BLOB,
  weight     INTEGER NOT NULL,
  capacity   INTEGER NOT NULL,
  fence      INTEGER,
  entered    INTEGER NOT NULL,
  granted    INTEGER,
  hold_until INTEGER,
  note       BLOB    NOT NULL,
  note_edit  INTEGER NOT NULL DEFAULT 0,
  cell_edit  INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (name, seq)
) WITHOUT ROWID;
-- Every renewal reads the ids of its session's tickets, so they are in the index.
CREATE INDEX ticket_session ON ticket(session, id);
CREATE INDEX ticket_hold ON ticket(hold_until) WHERE hold_until IS NOT NULL;

-- Tickets that were left while a copy of their enter may still be under way.
CREATE TABLE closed(
  ticket  BLOB    NOT NULL,
  session BLOB    NOT NULL,
  until   INTEGER NOT NULL,
  PRIMARY KEY (ticket, session)
) WITHOUT ROWID;

CREATE INDEX closed_until ON closed(until);

-- The values that belong to names.
CREATE TABLE cell(
  name  TEXT    PRIMARY KEY,
  bytes BLOB    NOT NULL,
  fence INTEGER NOT NULL
) WITHOUT ROWID;
