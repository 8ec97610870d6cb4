ALTER TABLE "tenant_template"."questions" ALTER COLUMN "context" SET DATA TYPE json;--> statement-breakpoint
ALTER TABLE "tenant_template"."questions" ALTER COLUMN "schema" SET DATA TYPE json;