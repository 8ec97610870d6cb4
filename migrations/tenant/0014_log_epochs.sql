CREATE TABLE "tenant_template"."log_epochs" (
	"epoch" integer PRIMARY KEY NOT NULL,
	"relation" bigint NOT NULL,
	"written_by" "xid8" NOT NULL,
	"began_at" timestamp with time zone DEFAULT now() NOT NULL
);
--> statement-breakpoint
INSERT INTO "tenant_template"."log_epochs" (epoch, relation, written_by)
VALUES (0, '"tenant_template"."log_epochs"'::regclass::oid::bigint, pg_current_xact_id());
--> statement-breakpoint
-- What currentTransaction() of server/events/log/transaction-ids.ts writes: for enqueue() and for daemons of earlier versions.
CREATE FUNCTION "tenant_template".log_transaction_id() RETURNS xid8
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN (SELECT CASE WHEN p.epoch = 0 THEN pg_current_xact_id()
                      ELSE ((p.epoch::bigint << 48) + pg_current_xact_id()::text::bigint)::text::xid8 END
            FROM (SELECT l.epoch + (l.relation <> l.tableoid::bigint OR l.written_by::xid <> l.xmin)::int AS epoch
                    FROM "tenant_template".log_epochs l
                   ORDER BY l.epoch DESC
                   LIMIT 1) p);
END
$$;
--> statement-breakpoint
ALTER TABLE "tenant_template"."events" ALTER COLUMN "xid" SET DEFAULT "tenant_template".log_transaction_id();
