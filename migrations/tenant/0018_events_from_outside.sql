CREATE TABLE "tenant_template"."received_events" (
	"id" uuid PRIMARY KEY NOT NULL,
	"name" text NOT NULL,
	"event_id" text,
	"data" jsonb NOT NULL,
	"received_at" timestamp with time zone NOT NULL,
	"delivered_at" timestamp with time zone
);
--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" ADD COLUMN "event_name" text;--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" ADD COLUMN "match" jsonb;--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" ADD COLUMN "match_key" text;--> statement-breakpoint
ALTER TABLE "tenant_template"."phases" ADD COLUMN "received_id" uuid;--> statement-breakpoint
CREATE UNIQUE INDEX "received_events_name_event_id" ON "tenant_template"."received_events" USING btree ("name","event_id") WHERE event_id is not null;--> statement-breakpoint
CREATE INDEX "received_events_name_received_at" ON "tenant_template"."received_events" USING btree ("name","received_at");--> statement-breakpoint
CREATE INDEX "received_events_data" ON "tenant_template"."received_events" USING gin ("data" jsonb_path_ops);--> statement-breakpoint
CREATE INDEX "received_events_undelivered" ON "tenant_template"."received_events" USING btree ("received_at") WHERE delivered_at is null;--> statement-breakpoint
CREATE INDEX "received_events_received_at" ON "tenant_template"."received_events" USING btree ("received_at");--> statement-breakpoint
CREATE INDEX "phases_event_name_match_key" ON "tenant_template"."phases" USING btree ("event_name","match_key") WHERE event_name is not null and status in ('pending','running');