-- The tables. All time is the server's clock.
--
-- A line's first ticket, if it was granted when it came to an empty line, stands in the line's own
-- row; all others stand in lk_ticket, behind it. So a lock that no other ticket wants is one row, updated
-- in place twice, as cheap as a lock table can be.

CREATE SCHEMA IF NOT EXISTS lockkeeper;

-- What this schema is: the layout's number, a random identity, when leftovers were last cleared away, up to
-- which name, and a digest of the statements that have made it.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_meta(
  id     integer PRIMARY KEY CHECK (id = 1),
  layout integer NOT NULL,
  store  bytea   NOT NULL CHECK (length(store) = 8),
  swept  timestamptz NOT NULL DEFAULT '-infinity',
  place  text COLLATE "C" NOT NULL DEFAULT '',
  digest text    NOT NULL DEFAULT ''
);

-- A session lives until expires, and its granted tickets stand until dead_at, which is the lock-delay
-- later. expires = -infinity says that it was ended: it is never renewed again. The row stays a while
-- longer, so that a request under way cannot leave a ticket that no sweep finds.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_session(
  id         bytea PRIMARY KEY,
  ttl        interval    NOT NULL,
  lock_delay interval    NOT NULL,
  expires    timestamptz NOT NULL,
  dead_at    timestamptz NOT NULL,
  channel    text    NOT NULL,
  host       text    NOT NULL,
  pid        bigint  NOT NULL,
  program    text    NOT NULL
) WITH (fillfactor = 50);

-- A name: the numbers it gave out, how many tickets stand in lk_ticket, and its first ticket. fence is that
-- of the first ticket, or of the one that was there before, and last is at least that of all others, and of
-- all that have left: the next number is greater than both. hold_until is set while there is a ticket that has no session. Until
-- closing, lk_closed may know of a ticket that must not enter this line any more. No ticket in lk_ticket has a
-- lower seq than lowest: what was deleted there stays in the index for as long as some snapshot can see
-- it, and must not be walked over.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_line(
  name       text COLLATE "C" PRIMARY KEY,
  last       bigint  NOT NULL,
  others     integer NOT NULL DEFAULT 0,
  capacity   integer NOT NULL,
  id         bytea,
  session    bytea,
  weight     integer NOT NULL,
  fence      bigint,
  entered    timestamptz,
  hold_until timestamptz,
  note       bytea   NOT NULL,
  note_edit  bigint  NOT NULL DEFAULT 0,
  cell_edit  bigint  NOT NULL DEFAULT 0,
  closing    timestamptz NOT NULL DEFAULT '-infinity',
  lowest     bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
-- Layouts 1 to 3 had fewer columns, and layout 1 functions that answered with less, which replacing cannot
-- change. Only then: a new column locks the table for a moment, and a call of a function that is being dropped
-- meets an error.
DO $$
DECLARE
  f record;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute
                  WHERE attrelid = 'lockkeeper.lk_line'::regclass AND attname = 'closing') THEN
    ALTER TABLE lockkeeper.lk_line ADD COLUMN closing timestamptz NOT NULL DEFAULT '-infinity';
  END IF;
  IF NOT EXISTS (SELECT FROM pg_attribute
                  WHERE attrelid = 'lockkeeper.lk_meta'::regclass AND attname = 'place') THEN
    ALTER TABLE lockkeeper.lk_meta ADD COLUMN place text COLLATE "C" NOT NULL DEFAULT '';
  END IF;
  IF NOT EXISTS (SELECT FROM pg_attribute
                  WHERE attrelid = 'lockkeeper.lk_meta'::regclass AND attname = 'digest') THEN
    ALTER TABLE lockkeeper.lk_meta ADD COLUMN digest text NOT NULL DEFAULT '';
  END IF;
  IF NOT EXISTS (SELECT FROM pg_attribute
                  WHERE attrelid = 'lockkeeper.lk_line'::regclass AND attname = 'lowest') THEN
    ALTER TABLE lockkeeper.lk_line ADD COLUMN lowest bigint NOT NULL DEFAULT 0;
  END IF;
  FOR f IN
    SELECT p.oid::regprocedure AS it
      FROM pg_proc p JOIN pg_class c ON c.relnamespace = p.pronamespace,
           (VALUES ('lk_open', 'o_store'), ('lk_clear', 'o_skipped'), ('lk_sweep', 'o_news'))
             AS new(proname, answer)
     WHERE c.oid = 'lockkeeper.lk_meta'::regclass AND p.proname = new.proname
       AND new.answer <> ALL (p.proargnames)
  LOOP
    EXECUTE format('DROP FUNCTION %s', f.it);
  END LOOP;
END $$;

-- A place in a line. session is NULL for a hold that has outlived its session, until hold_until.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_ticket(
  name       text COLLATE "C" NOT NULL,
  seq        bigint  NOT NULL,
  id         bytea   NOT NULL,
  session    bytea,
  weight     integer NOT NULL,
  capacity   integer NOT NULL,
  fence      bigint,
  entered    timestamptz NOT NULL,
  granted    timestamptz,
  hold_until timestamptz,
  note       bytea   NOT NULL,
  note_edit  bigint  NOT NULL DEFAULT 0,
  cell_edit  bigint  NOT NULL DEFAULT 0,
  PRIMARY KEY (name, seq)
) WITH (fillfactor = 70);

-- Tickets that were left while a copy of their enter may still be under way.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_closed(
  ticket  bytea NOT NULL,
  session bytea NOT NULL,
  until   timestamptz NOT NULL,
  PRIMARY KEY (ticket, session)
);

-- Tickets that were evicted. A session's version is their number.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_evicted(
  session bytea NOT NULL,
  ticket  bytea NOT NULL
);

-- The values that belong to names.
CREATE TABLE IF NOT EXISTS lockkeeper.lk_cell(
  name  text COLLATE "C" PRIMARY KEY,
  bytes bytea  NOT NULL,
  fence bigint NOT NULL
);

-- The indexes, and every ticket, wherever it stands, with the time at which it ends unless its session is
-- renewed, and its session's end: one that was ended has no valid fence, even if the clock is set back
-- before dead_at. Only what is not there yet: even to look whether an index exists keeps all writers out
-- of its table, and a view that is replaced waits for every transaction that has looked at it.
DO $$
BEGIN
  IF to_regclass('lockkeeper.lk_ticket_session') IS NULL THEN
    CREATE INDEX lk_ticket_session ON lockkeeper.lk_ticket(session);
  END IF;
  IF to_regclass('lockkeeper.lk_closed_until') IS NULL THEN
    CREATE INDEX lk_closed_until ON lockkeeper.lk_closed(until);
  END IF;
  IF to_regclass('lockkeeper.lk_evicted_session') IS NULL THEN
    CREATE INDEX lk_evicted_session ON lockkeeper.lk_evicted(session);
  END IF;
  IF pg_get_viewdef(to_regclass('lockkeeper.lk_standing')) LIKE '%OFFSET%' THEN
    RETURN;
  END IF;
  CREATE OR REPLACE VIEW lockkeeper.lk_standing AS
  SELECT l.name, 0::bigint AS seq, l.id, l.session, l.weight, l.capacity, l.fence, l.entered,
         l.entered AS granted, l.hold_until, l.note, l.note_edit, l.cell_edit,
         coalesce(l.hold_until, s.dead_at, '-infinity') AS dead_at,
         s.host, s.pid, s.program, s.expires
    FROM lockkeeper.lk_line l LEFT JOIN lockkeeper.lk_session s ON s.id = l.session
   WHERE l.id IS NOT NULL
  UNION ALL
  SELECT l.name, t.seq, t.id, t.session, t.weight, t.capacity, t.fence, t.entered,
         t.granted, t.hold_until, t.note, t.note_edit, t.cell_edit,
         coalesce(t.hold_until, CASE WHEN t.fence IS NULL THEN s.expires ELSE s.dead_at END,
                  '-infinity') AS dead_at,
         s.host, s.pid, s.program, s.expires
    FROM lockkeeper.lk_line l,
         -- OFFSET 0 leaves the planner no other way than the index by name and place, from the lowest on.
         LATERAL (SELECT * FROM lockkeeper.lk_ticket
                   WHERE name = l.name AND seq >= l.lowest OFFSET 0) t
         LEFT JOIN lockkeeper.lk_session s ON s.id = t.session;
END $$;
