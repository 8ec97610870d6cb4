ALTER TABLE "tenant_template"."event_seals" ADD COLUMN "pruned_by" bigint;--> statement-breakpoint
ALTER TABLE "tenant_template"."event_seals" ADD COLUMN "kind" text DEFAULT 'events' NOT NULL;--> statement-breakpoint
ALTER TABLE "tenant_template"."event_seals" ADD COLUMN "record" text;--> statement-breakpoint
ALTER TABLE "tenant_template"."event_seals" ADD COLUMN "job_hashes" "bytea";--> statement-breakpoint
ALTER TABLE "tenant_template"."event_seals" ADD CONSTRAINT "event_seals_kind" CHECK (kind in ('events','prune'));--> statement-breakpoint
-- Removed before removals were recorded in the chain.
UPDATE "tenant_template"."event_seals" SET "pruned_by" = 0 WHERE "pruned_at" IS NOT NULL;--> statement-breakpoint
ALTER TABLE "tenant_template"."event_seals" ADD CONSTRAINT "event_seals_pruned_by" CHECK (pruned_at is null or pruned_by is not null);