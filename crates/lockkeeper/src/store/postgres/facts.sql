-- What the store wants to know about a server, by name. One round trip.
WITH snapshots AS (
  SELECT age(backend_xmin) AS transactions, extract(epoch FROM clock_timestamp() - xact_start) AS seconds
    FROM pg_stat_activity
    WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND coalesce(datname, current_database()) = current_database()
  UNION ALL
  SELECT age(transaction), extract(epoch FROM clock_timestamp() - prepared)
    FROM pg_prepared_xacts WHERE database = current_database()
  UNION ALL
  SELECT age(xmin), 0 FROM pg_replication_slots WHERE xmin IS NOT NULL
)
SELECT name, value FROM (VALUES
  ('isolation', current_setting('default_transaction_isolation')),
  ('synchronous_commit', current_setting('synchronous_commit')),
  ('fsync', current_setting('fsync')),
  ('full_page_writes', current_setting('full_page_writes')),
  ('is_replica', CASE WHEN pg_is_in_recovery() THEN 'on' ELSE 'off' END),
  ('replicas', (SELECT count(*)::text FROM pg_stat_replication)),
  ('synchronous_replicas', current_setting('synchronous_standby_names')),
  ('oldest_snapshot', (SELECT coalesce(max(transactions), 0)::text FROM snapshots)),
  ('oldest_snapshot_seconds', (SELECT coalesce(max(seconds), 0)::bigint::text FROM snapshots)),
  -- Put together, because the schema's name is put in the place of ours where a dot follows it.
  ('old_snapshot_seconds', coalesce(current_setting('lockkeeper' || '.old_snapshot_seconds', true), '')),
  ('now', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text)
) AS facts(name, value)
