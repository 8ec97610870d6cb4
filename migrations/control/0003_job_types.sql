CREATE TABLE "leasehold"."job_types" (
	"type" text PRIMARY KEY NOT NULL,
	"max_attempts" integer,
	"retry" jsonb,
	"timeout_seconds" real,
	"on_error" text,
	"phases" text[],
	"updated_at" timestamp with time zone DEFAULT now() NOT NULL
);
