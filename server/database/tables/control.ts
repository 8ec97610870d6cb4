// The control schema: tenants, keys, daemons. It is written rarely, never on the hot path. drizzle-kit reads this file
// to write migrations/control.
import { sql } from 'drizzle-orm';
import { boolean, check, index, integer, jsonb, pgSchema, real, text, uniqueIndex, uuid } from 'drizzle-orm/pg-core';
import { at, bytea } from './columns.ts';

export const control = pgSchema('leasehold');

export const tenants = control.table(
  'tenants',
  {
    id: uuid('id').primaryKey(),
    slug: text('slug').notNull(),
    schemaName: text('schema_name').notNull(),
    status: text('status').notNull(),
    settings: jsonb('settings').notNull().default({}),
    /** Secrets that sign this tenant's webhooks, newest first. */
    webhookSecrets: text('webhook_secrets').array().notNull().default(sql`'{}'::text[]`),
    /** The key that signs values clients keep for the server, such as positions in streams and lists. Never shown. */
    secret: uuid('secret').notNull().defaultRandom(),
    deleteToken: text('delete_token'),
    createdAt: at('created_at').notNull().defaultNow(),
    updatedAt: at('updated_at').notNull().defaultNow(),
  },
  (t) => [
    check('tenants_status', sql`status in ('PROVISIONING','ACTIVE','SUSPENDED','DELETING')`),
    uniqueIndex('tenants_slug').on(t.slug),
    uniqueIndex('tenants_schema_name').on(t.schemaName),
  ],
);

export const apiKeys = control.table(
  'api_keys',
  {
    id: text('id').primaryKey(),
    /** Null for an operator's key, for /api/admin. */
    tenantId: uuid('tenant_id').references(() => tenants.id, { onDelete: 'cascade' }),
    name: text('name').notNull(),
    hash: bytea('hash').notNull(),
    scopes: text('scopes').array().notNull(),
    createdAt: at('created_at').notNull().defaultNow(),
    expiresAt: at('expires_at'),
    revokedAt: at('revoked_at'),
    lastUsedAt: at('last_used_at'),
  },
  (t) => [index('api_keys_tenant_id').on(t.tenantId)],
);

/** The registry of daemons: who is alive, draining, and how busy. */
export const daemons = control.table('daemons', {
  id: text('id').primaryKey(),
  /** New for each process: a daemon that restarts under its old name is another owner. */
  incarnation: uuid('incarnation').notNull(),
  host: text('host').notNull(),
  pid: integer('pid').notNull(),
  version: text('version').notNull(),
  startedAt: at('started_at').notNull().defaultNow(),
  lastBeatAt: at('last_beat_at').notNull().defaultNow(),
  draining: boolean('draining').notNull().default(false),
  /** The end of the drain's grace period. */
  drainEndsAt: at('drain_ends_at'),
  running: integer('running').notNull().default(0),
  jobTypes: text('job_types').array().notNull().default(sql`'{}'::text[]`),
});

/**
 * The job types for which daemons have had handlers, with their definitions. The function `enqueue` in each tenant's
 * schema uses them.
 */
export const jobTypes = control.table('job_types', {
  type: text('type').primaryKey(),
  maxAttempts: integer('max_attempts'),
  retry: jsonb('retry'),
  timeoutSeconds: real('timeout_seconds'),
  onError: text('on_error'),
  phases: text('phases').array(),
  /** Limits of the type, by name, as in the settings of a tenant. */
  limits: jsonb('limits'),
  updatedAt: at('updated_at').notNull().defaultNow(),
});

/** Sessions of the dashboard, and the links that open one. Only the SHA-256 of a token is kept. */
export const sessions = control.table(
  'sessions',
  {
    id: bytea('id').primaryKey(),
    kind: text('kind').notNull(),
    /** Without a foreign key, because ADMIN_API_KEY has no row. */
    keyId: text('key_id').notNull(),
    /** A hash of the key's hash: the session ends when the key's text changes. */
    keyCheck: bytea('key_check').notNull(),
    createdAt: at('created_at').notNull().defaultNow(),
    expiresAt: at('expires_at').notNull(),
  },
  (t) => [check('sessions_kind', sql`kind in ('session','link')`), index('sessions_expires_at').on(t.expiresAt)],
);
