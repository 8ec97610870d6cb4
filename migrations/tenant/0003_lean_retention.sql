DROP INDEX "tenant_template"."jobs_finished_at";--> statement-breakpoint
-- Every job gets two more events soon after its first: room for their entries beside it. No two are equal.
ALTER INDEX "tenant_template"."events_job_id_seq" SET (fillfactor = 50, deduplicate_items = off);--> statement-breakpoint
-- Targets are names, not words of a language: compared byte by byte, several times with each step of a job.
ALTER TABLE "tenant_template"."targets" ALTER COLUMN "id" SET DATA TYPE text COLLATE "C";--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" ALTER COLUMN "target_id" SET DATA TYPE text COLLATE "C";
