CREATE TABLE "tenant_template"."question_links" (
	"id" uuid PRIMARY KEY NOT NULL,
	"question_id" uuid NOT NULL,
	"hash" "bytea" NOT NULL,
	"recipient" text,
	"created_by" text NOT NULL,
	"created_at" timestamp with time zone DEFAULT now() NOT NULL,
	"expires_at" timestamp with time zone NOT NULL,
	"used_at" timestamp with time zone,
	"revoked_at" timestamp with time zone
);
--> statement-breakpoint
CREATE TABLE "tenant_template"."questions" (
	"id" uuid PRIMARY KEY NOT NULL,
	"job_id" uuid NOT NULL,
	"step" text NOT NULL,
	"target_id" text,
	"title" text NOT NULL,
	"context" jsonb,
	"schema" jsonb NOT NULL,
	"actions" jsonb DEFAULT '[]'::jsonb NOT NULL,
	"assignees" text[] DEFAULT '{}'::text[] NOT NULL,
	"status" text DEFAULT 'open' NOT NULL,
	"asked_at" timestamp with time zone DEFAULT now() NOT NULL,
	"expires_at" timestamp with time zone NOT NULL,
	"on_timeout" jsonb,
	"remind_at" timestamp with time zone[] DEFAULT '{}'::timestamptz[] NOT NULL,
	"reminders" integer DEFAULT 0 NOT NULL,
	"escalate_at" timestamp with time zone,
	"escalate_to" text[],
	"escalated_at" timestamp with time zone,
	"answer" jsonb,
	"action" text,
	"answered_by" text,
	"closed_at" timestamp with time zone,
	CONSTRAINT "questions_status" CHECK (status in ('open','answered','expired','canceled')),
	CONSTRAINT "questions_closed" CHECK ((status = 'open') = (closed_at is null))
);
--> statement-breakpoint
CREATE UNIQUE INDEX "question_links_hash" ON "tenant_template"."question_links" USING btree ("hash");--> statement-breakpoint
CREATE INDEX "question_links_question_id_id" ON "tenant_template"."question_links" USING btree ("question_id","id");--> statement-breakpoint
CREATE UNIQUE INDEX "questions_job_id_step_open" ON "tenant_template"."questions" USING btree ("job_id","step") WHERE status = 'open';--> statement-breakpoint
CREATE INDEX "questions_job_id" ON "tenant_template"."questions" USING btree ("job_id");--> statement-breakpoint
CREATE INDEX "questions_open_id" ON "tenant_template"."questions" USING btree ("id") WHERE status = 'open';--> statement-breakpoint
CREATE INDEX "questions_assignees" ON "tenant_template"."questions" USING gin ("assignees") WHERE status = 'open';--> statement-breakpoint
CREATE INDEX "questions_target_id_id" ON "tenant_template"."questions" USING btree ("target_id","id") WHERE target_id is not null;