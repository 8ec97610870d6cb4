CREATE TABLE "leasehold"."sessions" (
	"id" "bytea" PRIMARY KEY NOT NULL,
	"kind" text NOT NULL,
	"key_id" text NOT NULL,
	"key_check" "bytea" NOT NULL,
	"created_at" timestamp with time zone DEFAULT now() NOT NULL,
	"expires_at" timestamp with time zone NOT NULL,
	CONSTRAINT "sessions_kind" CHECK (kind in ('session','link'))
);
--> statement-breakpoint
CREATE INDEX "sessions_expires_at" ON "leasehold"."sessions" USING btree ("expires_at");