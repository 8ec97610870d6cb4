ALTER TABLE "tenant_template"."jobs" ADD COLUMN "asked" boolean;--> statement-breakpoint
UPDATE "tenant_template"."questions" SET "status" = 'canceled', "closed_at" = now() WHERE "status" = 'open' AND "job_id" IN (SELECT "id" FROM "tenant_template"."jobs" WHERE "status" IN ('SUCCESS', 'PARTIAL', 'CANCELED'));--> statement-breakpoint
UPDATE "tenant_template"."jobs" SET "asked" = true WHERE "id" IN (SELECT "job_id" FROM "tenant_template"."questions" WHERE "status" = 'open');
