-- A user's own transaction calls this before it commits: it fails unless the lease still owns the
-- job, and keeps the sweeper off the row until that transaction ends.
CREATE FUNCTION "tenant_template".assert_lease(job uuid, lease uuid) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1
    FROM "tenant_template".jobs j
    JOIN "tenant_template".leases l ON l.id = j.lease_id
   WHERE j.id = job AND j.lease_id = lease AND j.status = 'RUNNING'
     AND l.state = 'ACTIVE' AND l.expires_at > clock_timestamp()
     FOR SHARE OF j;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'lease % no longer owns job %', lease, job USING ERRCODE = 'LH001';
  END IF;
END
$$;
--> statement-breakpoint
-- Renewals rewrite the lease row in place (HOT) while the page has room.
ALTER TABLE "tenant_template".leases SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
--> statement-breakpoint
-- A job is rewritten two or three times in its life; dead versions must go before the table doubles.
ALTER TABLE "tenant_template".jobs SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
