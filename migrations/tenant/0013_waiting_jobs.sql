ALTER TABLE "tenant_template"."jobs" DROP CONSTRAINT "jobs_shape";--> statement-breakpoint
DROP INDEX "tenant_template"."jobs_run_at";--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" ADD COLUMN "waiting" jsonb;--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" ADD COLUMN "kind" text DEFAULT 'phase' NOT NULL;--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" ADD COLUMN "parallel" boolean DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" ADD COLUMN "waits_until" timestamp with time zone;--> statement-breakpoint
CREATE INDEX "jobs_run_at" ON "tenant_template"."jobs" USING btree ("run_at") WHERE status in ('PENDING','WAITING');--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" ADD CONSTRAINT "jobs_shape" CHECK (case
        when status in ('SUCCESS','PARTIAL','CANCELED')
          then finished_at is not null and held_since is null and lane_rank is null and (target_id is null or not lane_head)
        when status in ('RUNNING','CLAIMED','PREPARING','LEASE_PENDING')
          then lane_head and lease_id is not null and lease_owner is not null
            and finished_at is null and held_since is null and lane_rank is null
        when lane_rank is not null and (target_id is null or lane_head) then false
        when status = 'QUEUED' then finished_at is null and held_since is null
        when status = 'PENDING' then finished_at is null and held_since is null and lane_rank is null
        when status = 'PAUSED' then finished_at is null and held_since is not null
        when status = 'ERROR' then finished_at is not null and held_since is not null
        when status = 'WAITING' then finished_at is null and held_since is not null and lane_rank is null and waiting is not null
        else false end);--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" ADD CONSTRAINT "phases_kind" CHECK (kind in ('phase','step','sleep','event','question'));