-- A check of leases that was made on a cluster, restored from a dump on one Postgres: its tables are not shards there, and no
-- table has the names of shards. No lease could end, and so no job.
DO $do$
BEGIN
  -- Not asked of the extension: the dump may have been restored already.
  IF (SELECT p.prosrc !~ 'pg_dist_shard' FROM pg_proc p WHERE p.oid = '"tenant_template".check_lease_end'::regproc) THEN
    RETURN;
  END IF;
  CREATE OR REPLACE FUNCTION "tenant_template".check_lease_end() RETURNS trigger
  LANGUAGE plpgsql AS $$
  DECLARE
    jobs text := 'jobs';
    owned record;
    is_active boolean;
  BEGIN
    IF TG_TABLE_NAME <> 'leases' THEN
      SELECT 'jobs_' || s.shardid INTO jobs
        FROM pg_catalog.pg_dist_shard s
       WHERE s.logicalrelid = '"tenant_template".jobs'::regclass;
    END IF;
    EXECUTE format(
      'SELECT j.id, j.status FROM %I.%I j WHERE j.id = ANY ($1) AND j.lease_id = $2 AND j.status = ANY ($3) LIMIT 1',
      TG_TABLE_SCHEMA, jobs)
      INTO owned USING OLD.job_ids, OLD.id, array['CLAIMED', 'PREPARING', 'LEASE_PENDING', 'RUNNING'];
    IF owned.id IS NULL THEN
      RETURN NULL;
    END IF;
    -- It may be active again in the same transaction.
    EXECUTE format('SELECT EXISTS (SELECT 1 FROM %s l WHERE l.id = $1 AND l.state = ''ACTIVE'')', TG_RELID::regclass)
      INTO is_active USING OLD.id;
    IF NOT is_active THEN
      RAISE EXCEPTION 'lease % cannot end: job % is % under it', OLD.id, owned.id, owned.status USING ERRCODE = 'LH007';
    END IF;
    RETURN NULL;
  END
  $$;
END
$do$;
