DROP INDEX "tenant_template"."jobs_finished_at";--> statement-breakpoint
-- Every job gets two more events soon after its first: room for their entries beside it. No two are equal.
ALTER INDEX "tenant_template"."events_job_id_seq" SET (fillfactor = 50, deduplicate_items = off);
