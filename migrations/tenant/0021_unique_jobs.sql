CREATE TABLE "tenant_template"."unique_keys" (
	"type" text NOT NULL,
	"key" text NOT NULL,
	"job_id" uuid,
	"until" text DEFAULT 'finished' NOT NULL,
	"held_until" timestamp with time zone,
	"used_at" timestamp with time zone NOT NULL,
	CONSTRAINT "unique_keys_type_key_pk" PRIMARY KEY("type","key"),
	CONSTRAINT "unique_keys_until" CHECK (until in ('started','finished','seconds'))
);
--> statement-breakpoint
CREATE INDEX "unique_keys_used_at" ON "tenant_template"."unique_keys" USING btree ("used_at");