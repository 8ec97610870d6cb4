ALTER TABLE "tenant_template"."operations" ADD COLUMN "canary" text;--> statement-breakpoint
ALTER TABLE "tenant_template"."operations" ADD COLUMN "canary_job_id" uuid;--> statement-breakpoint
ALTER TABLE "tenant_template"."targets" ADD COLUMN "canary_job_id" uuid;--> statement-breakpoint
ALTER TABLE "tenant_template"."targets" ADD COLUMN "canary_paused" boolean DEFAULT false NOT NULL;--> statement-breakpoint
CREATE INDEX "targets_canary_job_id" ON "tenant_template"."targets" USING btree ("canary_job_id") WHERE canary_job_id is not null;--> statement-breakpoint
ALTER TABLE "tenant_template"."operations" ADD CONSTRAINT "operations_canary" CHECK (canary in ('waiting','succeeded','failed'));--> statement-breakpoint
ALTER TABLE "tenant_template"."targets" ADD CONSTRAINT "targets_canary" CHECK (canary_job_id is null and not canary_paused or paused_at is not null);