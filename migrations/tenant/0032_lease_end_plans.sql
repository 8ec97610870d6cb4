-- The check of 0025 and 0031, planned once per session and not for each lease: as text that is executed it took seven times as
-- long. A shard keeps its name when the tenant moves. A tenant that gets other shards, and one that is distributed later, is checked
-- as before.
DO $do$
DECLARE
  jobs text := 'jobs';
  leases text := 'leases';
BEGIN
  IF EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'citus') THEN
    SELECT 'jobs_' || j.shardid, 'leases_' || l.shardid INTO jobs, leases
      FROM pg_catalog.pg_dist_shard j, pg_catalog.pg_dist_shard l
     WHERE j.logicalrelid = '"tenant_template".jobs'::regclass
       AND l.logicalrelid = '"tenant_template".leases'::regclass;
  END IF;
  EXECUTE format($create$
    CREATE OR REPLACE FUNCTION "tenant_template".check_lease_end() RETURNS trigger
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
    DECLARE
      shard text;
      owned record;
      is_active boolean;
    BEGIN
      IF TG_TABLE_NAME = 'leases' THEN
        SELECT j.id, j.status INTO owned
          FROM "tenant_template".jobs j
         WHERE j.id = ANY (OLD.job_ids)
           AND j.lease_id = OLD.id
           AND j.status IN ('CLAIMED', 'PREPARING', 'LEASE_PENDING', 'RUNNING')
         LIMIT 1;
      ELSIF TG_TABLE_NAME = '%2$s' THEN
        SELECT j.id, j.status INTO owned
          FROM "tenant_template".%1$s j
         WHERE j.id = ANY (OLD.job_ids)
           AND j.lease_id = OLD.id
           AND j.status IN ('CLAIMED', 'PREPARING', 'LEASE_PENDING', 'RUNNING')
         LIMIT 1;
      ELSE
        SELECT 'jobs_' || s.shardid INTO shard
          FROM pg_catalog.pg_dist_shard s
         WHERE s.logicalrelid = '"tenant_template".jobs'::regclass;
        EXECUTE format(
          'SELECT j.id, j.status FROM %%I.%%I j WHERE j.id = ANY ($1) AND j.lease_id = $2 AND j.status = ANY ($3) LIMIT 1',
          TG_TABLE_SCHEMA, shard)
          INTO owned USING OLD.job_ids, OLD.id, array['CLAIMED', 'PREPARING', 'LEASE_PENDING', 'RUNNING'];
      END IF;
      IF owned.id IS NULL THEN
        RETURN NULL;
      END IF;
      -- It may be active again in the same transaction.
      EXECUTE format('SELECT EXISTS (SELECT 1 FROM %%s l WHERE l.id = $1 AND l.state = ''ACTIVE'')', TG_RELID::regclass)
        INTO is_active USING OLD.id;
      IF NOT is_active THEN
        RAISE EXCEPTION 'lease %% cannot end: job %% is %% under it', OLD.id, owned.id, owned.status USING ERRCODE = 'LH007';
      END IF;
      RETURN NULL;
    END
    $$$create$, jobs, leases);
END
$do$;
