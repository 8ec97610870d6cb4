CREATE TABLE "tenant_template"."limit_buckets" (
	"key" text PRIMARY KEY NOT NULL,
	"full_at" timestamp with time zone NOT NULL
);
--> statement-breakpoint
DROP INDEX "tenant_template"."jobs_claim_priority_created_at_id";--> statement-breakpoint
DROP INDEX "tenant_template"."jobs_claim_queue_priority_created_at_id";--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" ADD COLUMN "gated" boolean DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" ADD COLUMN "limit_keys" text[];--> statement-breakpoint
CREATE INDEX "limit_buckets_full_at" ON "tenant_template"."limit_buckets" USING btree ("full_at");--> statement-breakpoint
CREATE INDEX "jobs_gated_limit_keys_priority_created_at_id" ON "tenant_template"."jobs" USING btree ("limit_keys","priority","created_at","id") WHERE gated and lane_head and status = 'QUEUED';--> statement-breakpoint
CREATE INDEX "jobs_limit_keys_status" ON "tenant_template"."jobs" USING btree ("limit_keys","status") WHERE limit_keys is not null and not gated and status in ('QUEUED','CLAIMED','PREPARING','LEASE_PENDING','RUNNING');--> statement-breakpoint
CREATE INDEX "jobs_claim_priority_created_at_id" ON "tenant_template"."jobs" USING btree ("priority","created_at","id") WHERE status = 'QUEUED' and lane_head and not remote and not gated;--> statement-breakpoint
CREATE INDEX "jobs_claim_queue_priority_created_at_id" ON "tenant_template"."jobs" USING btree ("queue","priority","created_at","id") WHERE status = 'QUEUED' and lane_head and remote and not gated;