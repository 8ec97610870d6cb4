-- A lease cannot end, or be deleted, while a job is owned under it: nobody would find that job again. Checked at commit,
-- when the transaction that ends the lease has also ended its jobs. A cluster has no triggers; there only the statements
-- that end leases make sure of it.
DO $do$
BEGIN
  IF EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'citus') THEN
    RETURN;
  END IF;
  CREATE FUNCTION "tenant_template".check_lease_end() RETURNS trigger
  LANGUAGE plpgsql AS $$
  DECLARE
    owned record;
  BEGIN
    SELECT j.id, j.status INTO owned
      FROM "tenant_template".jobs j
     WHERE j.id = ANY (OLD.job_ids)
       AND j.lease_id = OLD.id
       AND j.status IN ('CLAIMED', 'PREPARING', 'LEASE_PENDING', 'RUNNING')
     LIMIT 1;
    -- It may be active again in the same transaction.
    IF FOUND AND NOT EXISTS (
      SELECT 1 FROM "tenant_template".leases l WHERE l.id = OLD.id AND l.state = 'ACTIVE'
    ) THEN
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
