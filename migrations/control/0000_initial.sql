CREATE SCHEMA "leasehold";
--> statement-breakpoint
CREATE TABLE "leasehold"."api_keys" (
	"id" text PRIMARY KEY NOT NULL,
	"tenant_id" uuid,
	"name" text NOT NULL,
	"hash" "bytea" NOT NULL,
	"scopes" text[] NOT NULL,
	"created_at" timestamp with time zone DEFAULT now() NOT NULL,
	"expires_at" timestamp with time zone,
	"revoked_at" timestamp with time zone,
	"last_used_at" timestamp with time zone
);
--> statement-breakpoint
CREATE TABLE "leasehold"."daemons" (
	"id" text PRIMARY KEY NOT NULL,
	"incarnation" uuid NOT NULL,
	"host" text NOT NULL,
	"pid" integer NOT NULL,
	"version" text NOT NULL,
	"started_at" timestamp with time zone DEFAULT now() NOT NULL,
	"last_beat_at" timestamp with time zone DEFAULT now() NOT NULL,
	"draining" boolean DEFAULT false NOT NULL,
	"running" integer DEFAULT 0 NOT NULL,
	"job_types" text[] DEFAULT '{}'::text[] NOT NULL
);
--> statement-breakpoint
CREATE TABLE "leasehold"."tenants" (
	"id" uuid PRIMARY KEY NOT NULL,
	"slug" text NOT NULL,
	"schema_name" text NOT NULL,
	"status" text NOT NULL,
	"settings" jsonb DEFAULT '{}'::jsonb NOT NULL,
	"webhook_secrets" text[] DEFAULT '{}'::text[] NOT NULL,
	"delete_token" text,
	"created_at" timestamp with time zone DEFAULT now() NOT NULL,
	"updated_at" timestamp with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "tenants_status" CHECK (status in ('PROVISIONING','ACTIVE','SUSPENDED','DELETING'))
);
--> statement-breakpoint
ALTER TABLE "leasehold"."api_keys" ADD CONSTRAINT "api_keys_tenant_id_tenants_id_fk" FOREIGN KEY ("tenant_id") REFERENCES "leasehold"."tenants"("id") ON DELETE cascade ON UPDATE no action;--> statement-breakpoint
CREATE INDEX "api_keys_tenant_id" ON "leasehold"."api_keys" USING btree ("tenant_id");--> statement-breakpoint
CREATE UNIQUE INDEX "tenants_slug" ON "leasehold"."tenants" USING btree ("slug");--> statement-breakpoint
CREATE UNIQUE INDEX "tenants_schema_name" ON "leasehold"."tenants" USING btree ("schema_name");