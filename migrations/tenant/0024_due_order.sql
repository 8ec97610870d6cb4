DROP INDEX "tenant_template"."jobs_run_at";--> statement-breakpoint
DROP INDEX "tenant_template"."phases_event_name_match_key";--> statement-breakpoint
CREATE INDEX "jobs_run_at_id" ON "tenant_template"."jobs" USING btree ("run_at","id") WHERE status in ('PENDING','WAITING');--> statement-breakpoint
CREATE INDEX "phases_event_name_match_key_job_id" ON "tenant_template"."phases" USING btree ("event_name","match_key","job_id") WHERE event_name is not null and status in ('pending','running');