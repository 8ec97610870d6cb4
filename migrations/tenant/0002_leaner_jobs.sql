ALTER TABLE "tenant_template"."jobs" DROP CONSTRAINT "jobs_status";--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" DROP CONSTRAINT "jobs_leased";--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" DROP CONSTRAINT "jobs_finished";--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" DROP CONSTRAINT "jobs_terminal_leaves_lane";--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" DROP CONSTRAINT "jobs_in_line";--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" DROP CONSTRAINT "jobs_held";--> statement-breakpoint
ALTER TABLE "tenant_template"."job_logs" DROP CONSTRAINT "job_logs_job_id_jobs_id_fk";
--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" DROP CONSTRAINT "phases_job_id_jobs_id_fk";
--> statement-breakpoint
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
        else false end);--> statement-breakpoint
-- Every job gets two more versions soon after its first: room for their entries beside it.
ALTER INDEX "tenant_template"."jobs_pkey" SET (fillfactor = 50);--> statement-breakpoint
-- Uuids do not compress.
ALTER TABLE "tenant_template"."leases" ALTER COLUMN "job_ids" SET STORAGE EXTERNAL;
