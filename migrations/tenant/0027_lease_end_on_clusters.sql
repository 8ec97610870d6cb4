-- The check of 0025 in a cluster: a lease cannot end, or be deleted, while a job is owned under it. Citus creates the triggers on
-- the shard as well, again on the other node after a move. There the function reads the shards beside it: all tables of a
-- tenant are on one node, and nothing is asked of another one, which is why the setting is safe here.
DO $do$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'citus') THEN
    RETURN;
  END IF;
  PERFORM set_config('citus.enable_unsafe_triggers', 'on', true);
  CREATE FUNCTION "tenant_template".check_lease_end() RETURNS trigger
  LANGUAGE plpgsql AS $$
  DECLARE
    jobs text := (SELECT format('%I.%I', TG_TABLE_SCHEMA, 'jobs_' || s.shardid)
                    FROM pg_catalog.pg_dist_shard s
                   WHERE s.logicalrelid = '"tenant_template".jobs'::regclass);
    owned record;
    is_active boolean;
  BEGIN
    EXECUTE format(
      'SELECT j.id, j.status FROM %s j WHERE j.id = ANY ($1) AND j.lease_id = $2 AND j.status = ANY ($3) LIMIT 1', jobs)
      INTO owned USING OLD.job_ids, OLD.id, array['CLAIMED', 'PREPARING', 'LEASE_PENDING', 'RUNNING'];
    IF owned.id IS NULL THEN
      RETURN NULL;
    END IF;
    -- It may be active again in the same transaction.
    EXECUTE format('SELECT EXISTS (SELECT 1 FROM %s l WHERE l.id = $1 AND l.state = ''ACTIVE'')', TG_RELID::regclass)
      INTO is_active USING OLD.id;
    IF NOT is_active THEN
      RAISE EXCEPTION 'lease % cannot end: job % is % under it', OLD.id, owned.id, owned.status USING ERRCODE = 'LH002';
    END IF;
    RETURN NULL;
  END
  $$;
  CREATE CONSTRAINT TRIGGER leases_ended AFTER UPDATE ON "tenant_template".leases
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.state = 'ACTIVE' AND NEW.state <> 'ACTIVE')
    EXECUTE FUNCTION "tenant_template".check_lease_end();
  CREATE CONSTRAINT TRIGGER leases_deleted AFTER DELETE ON "tenant_template".leases
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.state = 'ACTIVE')
    EXECUTE FUNCTION "tenant_template".check_lease_end();
END
$do$;
