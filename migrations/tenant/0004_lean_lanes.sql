DROP INDEX "tenant_template"."jobs_target_id_id";--> statement-breakpoint
CREATE INDEX "targets_paused_id" ON "tenant_template"."targets" USING btree ("id") WHERE paused_at is not null;--> statement-breakpoint
CREATE INDEX "jobs_target_id_id" ON "tenant_template"."jobs" USING btree ("target_id","id") WHERE not lane_head and lane_rank is null;