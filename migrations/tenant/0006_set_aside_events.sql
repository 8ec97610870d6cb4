CREATE TABLE "tenant_template"."set_aside_events" (
	"follower" text NOT NULL,
	"event_xid" "xid8" NOT NULL,
	"event_seq" bigint NOT NULL,
	"code" text NOT NULL,
	"error" text NOT NULL,
	"set_aside_at" timestamp with time zone DEFAULT now() NOT NULL,
	CONSTRAINT "set_aside_events_follower_event_xid_event_seq_pk" PRIMARY KEY("follower","event_xid","event_seq")
);
