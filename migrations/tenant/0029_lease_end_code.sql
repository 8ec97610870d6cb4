-- The check of 0025 and 0027 gets a SQLSTATE of its own: LH002 is that of an argument which `enqueue` refuses.
DO $do$
BEGIN
  EXECUTE replace(pg_get_functiondef('"tenant_template".check_lease_end'::regproc), 'LH002', 'LH007');
END
$do$;
