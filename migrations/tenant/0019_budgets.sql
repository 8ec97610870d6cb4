CREATE TABLE "tenant_template"."usage_days" (
	"day" date NOT NULL,
	"scope" text NOT NULL,
	"unit" text NOT NULL,
	"used" numeric NOT NULL,
	CONSTRAINT "usage_days_day_scope_unit_pk" PRIMARY KEY("day","scope","unit")
);
--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" ADD COLUMN "budget" jsonb;--> statement-breakpoint
ALTER TABLE "tenant_template"."jobs" ADD COLUMN "usage" jsonb;