-- Writes the cell of a name under a grant, if that is held now. One round trip.
-- $1 name, $2 ticket, $3 fence, $4 weight, $5 capacity, $6 bytes  -> was it written?
--
-- Each part waits for the one before it, because it reads its column. lk_check looks at the data as it is once the
-- line's row is locked: a function that is VOLATILE has a snapshot of its own. Behind a pooler the wait for the row is
-- bounded here, as by lk_bound.
WITH bound AS MATERIALIZED (
  SELECT CASE WHEN current_setting('lock_timeout') = '0' THEN set_config('lock_timeout', '200ms', true) END AS it
), line AS MATERIALIZED (
  SELECT lockkeeper.lk_hold_line($1) AS found FROM bound WHERE it IS DISTINCT FROM ''
), claim AS MATERIALIZED (
  SELECT lockkeeper.lk_check($1, $2, $3, $4, $5) AS held FROM line WHERE found
), written AS (
  INSERT INTO lockkeeper.lk_cell SELECT $1, $6, $3 FROM claim WHERE held
  ON CONFLICT (name) DO UPDATE SET bytes = excluded.bytes, fence = excluded.fence
)
SELECT COALESCE((SELECT held FROM claim), false)
