CREATE SCHEMA "tenant_template";
--> statement-breakpoint
CREATE TABLE "tenant_template"."capacities" (
	"queue" text PRIMARY KEY NOT NULL,
	"total_units" integer NOT NULL,
	"reserved_job_id" uuid,
	"reserved_until" timestamp with time zone,
	CONSTRAINT "capacities_total" CHECK (total_units > 0)
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."event_seals" (
	"number" bigint PRIMARY KEY NOT NULL,
	"snapshot" text NOT NULL,
	"event_keys" text[] NOT NULL,
	"event_hashes" "bytea" NOT NULL,
	"previous_hash" "bytea" NOT NULL,
	"hash" "bytea" NOT NULL,
	"sealed_at" timestamp with time zone DEFAULT now() NOT NULL,
	"pruned_at" timestamp with time zone
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."events" (
	"xid" "xid8" DEFAULT pg_current_xact_id() NOT NULL,
	"seq" bigint GENERATED ALWAYS AS IDENTITY (sequence name "tenant_template"."events_seq_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"at" timestamp with time zone DEFAULT now() NOT NULL,
	"type" text NOT NULL,
	"job_id" uuid,
	"target_id" text,
	"from_status" text,
	"to_status" text,
	"attempt" integer,
	"lease_id" uuid,
	"actor" text NOT NULL,
	"data" jsonb,
	CONSTRAINT "events_xid_seq_pk" PRIMARY KEY("xid","seq")
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."followers" (
	"name" text PRIMARY KEY NOT NULL,
	"snapshot" text NOT NULL,
	"state" jsonb DEFAULT '{}'::jsonb NOT NULL,
	"updated_at" timestamp with time zone DEFAULT now() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."job_logs" (
	"job_id" uuid NOT NULL,
	"seq" bigint GENERATED ALWAYS AS IDENTITY (sequence name "tenant_template"."job_logs_seq_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"at" timestamp with time zone DEFAULT now() NOT NULL,
	"attempt" integer NOT NULL,
	"level" text DEFAULT 'info' NOT NULL,
	"message" text NOT NULL,
	"data" jsonb,
	CONSTRAINT "job_logs_job_id_seq_pk" PRIMARY KEY("job_id","seq")
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."jobs" (
	"id" uuid PRIMARY KEY NOT NULL,
	"created_at" timestamp with time zone DEFAULT now() NOT NULL,
	"run_at" timestamp with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp with time zone DEFAULT now() NOT NULL,
	"lane_seq" bigint DEFAULT 0 NOT NULL,
	"tokens_used" bigint DEFAULT 0 NOT NULL,
	"attempt" integer DEFAULT 0 NOT NULL,
	"attempt_floor" integer DEFAULT 0 NOT NULL,
	"max_attempts" integer DEFAULT 1 NOT NULL,
	"cost_units" integer DEFAULT 1 NOT NULL,
	"priority" smallint DEFAULT 2 NOT NULL,
	"lane_head" boolean NOT NULL,
	"remote" boolean DEFAULT false NOT NULL,
	"cancel_requested" boolean DEFAULT false NOT NULL,
	"webhook_sent" boolean DEFAULT false NOT NULL,
	"status" text NOT NULL,
	"type" text NOT NULL,
	"queue" text DEFAULT 'default' NOT NULL,
	"on_error" text DEFAULT 'block' NOT NULL,
	"target_id" text,
	"lane_rank" smallint,
	"lease_id" uuid,
	"lease_owner" text,
	"started_at" timestamp with time zone,
	"finished_at" timestamp with time zone,
	"held_since" timestamp with time zone,
	"expires_at" timestamp with time zone,
	"stale_at" timestamp with time zone,
	"cancel_intent" text,
	"cancel_detail" jsonb,
	"token_limit" bigint,
	"progress" real,
	"progress_message" text,
	"payload" jsonb NOT NULL,
	"result" jsonb,
	"error" jsonb,
	"checkpoint" jsonb,
	"retry" jsonb,
	"timeout_seconds" real,
	"constraints" jsonb,
	"on_drain" text,
	"webhook_url" text,
	"client_request_id" text,
	"request_hash" text,
	"traceparent" text,
	"author" text,
	"parent_id" uuid,
	"schedule_id" uuid,
	CONSTRAINT "jobs_status" CHECK (status in ('PENDING','QUEUED','CLAIMED','PREPARING','LEASE_PENDING','RUNNING','PAUSED','ERROR','SUCCESS','PARTIAL','CANCELED')),
	CONSTRAINT "jobs_leased" CHECK (status not in ('CLAIMED','PREPARING','LEASE_PENDING','RUNNING') or (lease_id is not null and lease_owner is not null and lane_head)),
	CONSTRAINT "jobs_finished" CHECK ((status in ('SUCCESS','PARTIAL','CANCELED','ERROR')) = (finished_at is not null)),
	CONSTRAINT "jobs_terminal_leaves_lane" CHECK (target_id is null or not lane_head or status not in ('SUCCESS','PARTIAL','CANCELED')),
	CONSTRAINT "jobs_no_target_is_head" CHECK (target_id is not null or lane_head),
	CONSTRAINT "jobs_in_line" CHECK (lane_rank is null or (target_id is not null and not lane_head and status in ('QUEUED','PAUSED','ERROR'))),
	CONSTRAINT "jobs_held" CHECK ((status in ('PAUSED','ERROR')) = (held_since is not null)),
	CONSTRAINT "jobs_attempts" CHECK (attempt >= attempt_floor and attempt - attempt_floor <= max_attempts),
	CONSTRAINT "jobs_cancel_intent" CHECK (cancel_requested = (cancel_intent is not null) and cancel_intent in ('pause','cancel')),
	CONSTRAINT "jobs_choices" CHECK (priority between 0 and 3 and on_error in ('block','continue') and on_drain in ('pause','requeue') and max_attempts > 0 and cost_units > 0)
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."leases" (
	"id" uuid PRIMARY KEY NOT NULL,
	"kind" text NOT NULL,
	"owner" text NOT NULL,
	"job_ids" uuid[] NOT NULL,
	"queue" text,
	"cost_units" integer DEFAULT 0 NOT NULL,
	"ttl_seconds" real NOT NULL,
	"state" text DEFAULT 'ACTIVE' NOT NULL,
	"granted_at" timestamp with time zone DEFAULT now() NOT NULL,
	"last_heartbeat_at" timestamp with time zone DEFAULT now() NOT NULL,
	"expires_at" timestamp with time zone NOT NULL,
	"released_at" timestamp with time zone,
	"release_status" text,
	"metrics" jsonb,
	CONSTRAINT "leases_kind" CHECK (kind in ('local','claim','remote')),
	CONSTRAINT "leases_state" CHECK (state in ('ACTIVE','EXPIRED','RELEASED'))
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."operations" (
	"id" uuid PRIMARY KEY NOT NULL,
	"action" text NOT NULL,
	"filter" jsonb NOT NULL,
	"status" text DEFAULT 'running' NOT NULL,
	"author" text,
	"reason" text,
	"matched" integer DEFAULT 0 NOT NULL,
	"done" integer DEFAULT 0 NOT NULL,
	"failed" integer DEFAULT 0 NOT NULL,
	"cursor" uuid,
	"locked_until" timestamp with time zone,
	"created_at" timestamp with time zone DEFAULT now() NOT NULL,
	"finished_at" timestamp with time zone,
	CONSTRAINT "operations_status" CHECK (status in ('running','finished','failed'))
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."phases" (
	"job_id" uuid NOT NULL,
	"name" text NOT NULL,
	"position" smallint NOT NULL,
	"status" text DEFAULT 'pending' NOT NULL,
	"progress" real DEFAULT 0 NOT NULL,
	"message" text,
	"result" jsonb,
	"error" jsonb,
	"attempt" integer DEFAULT 0 NOT NULL,
	"started_at" timestamp with time zone,
	"finished_at" timestamp with time zone,
	CONSTRAINT "phases_job_id_name_pk" PRIMARY KEY("job_id","name"),
	CONSTRAINT "phases_status" CHECK (status in ('pending','running','completed','partial','failed','skipped','cancelled'))
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."schedules" (
	"id" uuid PRIMARY KEY NOT NULL,
	"name" text NOT NULL,
	"cron" text NOT NULL,
	"timezone" text DEFAULT 'UTC' NOT NULL,
	"job" jsonb NOT NULL,
	"missed" text DEFAULT 'latest' NOT NULL,
	"paused_at" timestamp with time zone,
	"paused_by" text,
	"next_at" timestamp with time zone,
	"last_fired_at" timestamp with time zone,
	"last_job_id" uuid,
	"author" text,
	"created_at" timestamp with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "schedules_missed" CHECK (missed in ('skip','latest','all'))
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."stat_minutes" (
	"minute" timestamp with time zone NOT NULL,
	"queue" text NOT NULL,
	"enqueued" integer DEFAULT 0 NOT NULL,
	"started" integer DEFAULT 0 NOT NULL,
	"succeeded" integer DEFAULT 0 NOT NULL,
	"failed" integer DEFAULT 0 NOT NULL,
	"canceled" integer DEFAULT 0 NOT NULL,
	"leases_granted" integer DEFAULT 0 NOT NULL,
	"leases_ended" integer DEFAULT 0 NOT NULL,
	"leases_expired" integer DEFAULT 0 NOT NULL,
	"deltas" jsonb DEFAULT '{}'::jsonb NOT NULL,
	"wait_buckets" integer[] NOT NULL,
	"run_buckets" integer[] NOT NULL,
	CONSTRAINT "stat_minutes_queue_minute_pk" PRIMARY KEY("queue","minute")
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."targets" (
	"id" text PRIMARY KEY NOT NULL,
	"lane_seq" bigint DEFAULT 0 NOT NULL,
	"labels" jsonb DEFAULT '{}'::jsonb NOT NULL,
	"paused_at" timestamp with time zone,
	"paused_by" text,
	"pause_reason" text,
	"paused_until" timestamp with time zone,
	"created_at" timestamp with time zone DEFAULT now() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."webhook_deliveries" (
	"id" uuid PRIMARY KEY NOT NULL,
	"job_id" uuid NOT NULL,
	"event_xid" "xid8" NOT NULL,
	"event_seq" bigint NOT NULL,
	"event_type" text NOT NULL,
	"url" text NOT NULL,
	"body" jsonb NOT NULL,
	"state" text DEFAULT 'pending' NOT NULL,
	"attempts" integer DEFAULT 0 NOT NULL,
	"next_at" timestamp with time zone DEFAULT now() NOT NULL,
	"locked_until" timestamp with time zone,
	"last_status" integer,
	"last_error" text,
	"created_at" timestamp with time zone DEFAULT now() NOT NULL,
	"finished_at" timestamp with time zone,
	CONSTRAINT "webhook_deliveries_state" CHECK (state in ('pending','delivered','failed','disabled'))
);
--> statement-breakpoint
ALTER TABLE "tenant_template"."job_logs" ADD CONSTRAINT "job_logs_job_id_jobs_id_fk" FOREIGN KEY ("job_id") REFERENCES "tenant_template"."jobs"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" ADD CONSTRAINT "phases_job_id_jobs_id_fk" FOREIGN KEY ("job_id") REFERENCES "tenant_template"."jobs"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "events_job_id_seq" ON "tenant_template"."events" USING btree ("job_id","seq") WHERE job_id is not null;--> statement-breakpoint
CREATE INDEX "jobs_claim_priority_created_at_id" ON "tenant_template"."jobs" USING btree ("priority","created_at","id") WHERE status = 'QUEUED' and lane_head and not remote;--> statement-breakpoint
CREATE INDEX "jobs_claim_queue_priority_created_at_id" ON "tenant_template"."jobs" USING btree ("queue","priority","created_at","id") WHERE status = 'QUEUED' and lane_head and remote;--> statement-breakpoint
CREATE UNIQUE INDEX "jobs_target_id_head" ON "tenant_template"."jobs" USING btree ("target_id") WHERE lane_head and target_id is not null;--> statement-breakpoint
CREATE INDEX "jobs_target_id_lane_rank_lane_seq" ON "tenant_template"."jobs" USING btree ("target_id","lane_rank","lane_seq") WHERE lane_rank is not null;--> statement-breakpoint
CREATE INDEX "jobs_run_at" ON "tenant_template"."jobs" USING btree ("run_at") WHERE status = 'PENDING';--> statement-breakpoint
CREATE INDEX "jobs_expires_at" ON "tenant_template"."jobs" USING btree ("expires_at") WHERE expires_at is not null and status in ('PENDING','QUEUED');--> statement-breakpoint
CREATE UNIQUE INDEX "jobs_client_request_id" ON "tenant_template"."jobs" USING btree ("client_request_id") WHERE client_request_id is not null;--> statement-breakpoint
CREATE INDEX "jobs_held_status_id" ON "tenant_template"."jobs" USING btree ("status","id") WHERE status in ('PAUSED','ERROR');--> statement-breakpoint
CREATE INDEX "jobs_target_id_id" ON "tenant_template"."jobs" USING btree ("target_id","id") WHERE target_id is not null;--> statement-breakpoint
CREATE INDEX "jobs_finished_at" ON "tenant_template"."jobs" USING btree ("finished_at") WHERE stale_at is null and (status in ('SUCCESS','PARTIAL','CANCELED') or (status = 'ERROR' and (target_id is null or on_error = 'continue')));--> statement-breakpoint
CREATE INDEX "jobs_stale_at" ON "tenant_template"."jobs" USING btree ("stale_at") WHERE stale_at is not null;--> statement-breakpoint
CREATE INDEX "leases_active_id" ON "tenant_template"."leases" USING btree ("id") WHERE state = 'ACTIVE';--> statement-breakpoint
CREATE INDEX "leases_released_at" ON "tenant_template"."leases" USING btree ("released_at") WHERE released_at is not null;--> statement-breakpoint
CREATE INDEX "operations_locked_until" ON "tenant_template"."operations" USING btree ("locked_until") WHERE status = 'running';--> statement-breakpoint
CREATE UNIQUE INDEX "schedules_name" ON "tenant_template"."schedules" USING btree ("name");--> statement-breakpoint
CREATE INDEX "schedules_next_at" ON "tenant_template"."schedules" USING btree ("next_at") WHERE paused_at is null and next_at is not null;--> statement-breakpoint
CREATE INDEX "stat_minutes_queue" ON "tenant_template"."stat_minutes" USING btree ("queue") WHERE minute = '-infinity';--> statement-breakpoint
CREATE INDEX "targets_paused_until" ON "tenant_template"."targets" USING btree ("paused_until") WHERE paused_until is not null;--> statement-breakpoint
CREATE UNIQUE INDEX "webhook_deliveries_event_xid_event_seq_url" ON "tenant_template"."webhook_deliveries" USING btree ("event_xid","event_seq","url");--> statement-breakpoint
CREATE INDEX "webhook_deliveries_url" ON "tenant_template"."webhook_deliveries" USING btree ("url") WHERE state = 'disabled';--> statement-breakpoint
CREATE INDEX "webhook_deliveries_next_at" ON "tenant_template"."webhook_deliveries" USING btree ("next_at") WHERE state = 'pending';--> statement-breakpoint
CREATE INDEX "webhook_deliveries_job_id_event_seq" ON "tenant_template"."webhook_deliveries" USING btree ("job_id","event_seq");--> statement-breakpoint
CREATE INDEX "webhook_deliveries_finished_at" ON "tenant_template"."webhook_deliveries" USING btree ("finished_at") WHERE finished_at is not null;