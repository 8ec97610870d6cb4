CREATE TABLE "tenant_template"."dependencies" (
	"job_id" uuid NOT NULL,
	"after_id" uuid NOT NULL,
	"step" text DEFAULT '' NOT NULL,
	"position" integer DEFAULT 0 NOT NULL,
	"on_failure" text DEFAULT 'hold' NOT NULL,
	"concurrency" integer,
	"state" text DEFAULT 'open' NOT NULL,
	CONSTRAINT "dependencies_job_id_after_id_pk" PRIMARY KEY("job_id","after_id"),
	CONSTRAINT "dependencies_on_failure" CHECK (on_failure in ('hold','cancel','continue','stop')),
	CONSTRAINT "dependencies_state" CHECK (state in ('gated','open','canceling','succeeded','failed','canceled'))
);
--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" DROP CONSTRAINT "phases_kind";--> statement-breakpoint
CREATE INDEX "dependencies_after_id" ON "tenant_template"."dependencies" USING btree ("after_id");--> statement-breakpoint
CREATE INDEX "dependencies_unfinished" ON "tenant_template"."dependencies" USING btree ("job_id","step","state","position") WHERE state in ('gated','open');--> statement-breakpoint
CREATE INDEX "dependencies_canceling" ON "tenant_template"."dependencies" USING btree ("job_id") WHERE state = 'canceling';--> statement-breakpoint
CREATE INDEX "phases_children" ON "tenant_template"."phases" USING btree ("job_id") WHERE kind = 'children' and status = 'pending';--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" ADD CONSTRAINT "phases_kind" CHECK (kind in ('phase','step','sleep','event','children','question'));