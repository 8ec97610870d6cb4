CREATE INDEX "targets_paused_id" ON "tenant_template"."targets" USING btree ("id") WHERE paused_at is not null;--> statement-breakpoint
-- Under another name first: while it is built, jobs can still be read, and leases renewed.
CREATE INDEX "jobs_target_id_outside" ON "tenant_template"."jobs" USING btree ("target_id","id") WHERE not lane_head and lane_rank is null;--> statement-breakpoint
DROP INDEX "tenant_template"."jobs_target_id_id";--> statement-breakpoint
ALTER INDEX "tenant_template"."jobs_target_id_outside" RENAME TO "jobs_target_id_id";
