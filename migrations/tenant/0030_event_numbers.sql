-- The number of an event that is written by SQL. In a cluster it comes from the tenant's node, as the numbers of all other
-- events: the coordinator has a sequence of its own, and its numbers are lower than those of earlier events of the job. See
-- server/database/nodes/shard-names.ts.
CREATE FUNCTION "tenant_template".next_event_number() RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') THEN
    RETURN nextval('"tenant_template".events_seq_seq');
  END IF;
  RETURN (
    SELECT (n.epoch + 1 << 48) + (nextval('"tenant_template".events_seq_seq') & 281474976710655)
      FROM (SELECT (l.epoch + (l.relation <> l.tableoid::bigint OR l.written_by::xid <> l.xmin)::int)::bigint AS epoch
              FROM "tenant_template".log_epochs l
             ORDER BY l.epoch DESC
             LIMIT 1) AS n);
END
$$;
--> statement-breakpoint
REVOKE ALL ON FUNCTION "tenant_template".next_event_number FROM PUBLIC;
--> statement-breakpoint
-- The number is drawn right before the event is written, when the job is locked; nothing else of the function changes.
DO $do$
DECLARE
  source text := pg_get_functiondef('"tenant_template".enqueue'::regproc);
  changed text;
BEGIN
  changed := regexp_replace(source,
    '(\n +)INSERT INTO ("?[a-z0-9_]+"?\.events) \((xid,[^)]*)\)(\s+)VALUES \((log_xid,)',
    E'\\1event_number := "tenant_template".next_event_number();'
    || E'\\1INSERT INTO \\2 (seq, \\3) OVERRIDING SYSTEM VALUE\\4VALUES (event_number, \\5', 'g');
  changed := regexp_replace(changed, '(\n +)(log_xid xid8;)', E'\\1\\2\\1event_number bigint;');
  IF changed !~ 'event_number bigint;.*event_number, log_xid, ''job\.replaced''.*event_number, log_xid, ''job\.enqueued''' THEN
    RAISE EXCEPTION 'the enqueue function is not the one of the last migration';
  END IF;
  EXECUTE changed;
END
$do$;
