// What enqueueing needs to know about job types. The worker's registry of handlers implements it; that of a daemon for
// remote workers only is empty. API, schedules and handlers check payloads and take defaults from it.
import type { Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import type { LimitSetting } from '../../tenants/limit.ts';
import { announceTenants } from '../../tenants/tenant-store.ts';
import type { RetryPolicy } from '../model/job.ts';

export interface TypeDefaults {
  maxAttempts?: number;
  retry?: RetryPolicy;
  timeoutSeconds?: number;
  onError?: 'block' | 'continue';
  phases?: string[];
  /** By name. */
  limits?: Record<string, LimitSetting>;
}

export type CheckedPayload = { ok: true; payload: unknown } | { ok: false; field: string; message: string };

export interface JobTypes {
  types(): readonly string[];
  has(type: string): boolean;
  /** The payload as the type's schema parsed it, or its first error. A type without a handler accepts any payload. */
  checkPayload(type: string, payload: unknown): CheckedPayload;
  /** What the definition of the type has for fields that the request leaves out. */
  defaults(type: string): TypeDefaults;
}

/** Stores what the definitions say, for those who enqueue without them: see the function `enqueue` of a tenant's schema. */
export async function publishJobTypes(db: Queryable, jobTypes: JobTypes): Promise<void> {
  const definitions = [...jobTypes.types()].map((type) => ({ type, ...jobTypes.defaults(type) }));
  if (definitions.length === 0) return;
  // In one order, so that daemons which start together do not lock each other out.
  const changed = await db.query<{ type: string }>(
    `insert into ${controlSchema}.job_types as t (type, max_attempts, retry, timeout_seconds, on_error, phases, limits)
     select type, "maxAttempts", retry, "timeoutSeconds", "onError", phases, limits
       from jsonb_to_recordset($1::jsonb) as d(
              type text, "maxAttempts" int, retry jsonb, "timeoutSeconds" real, "onError" text, phases text[], limits jsonb)
      order by type
     on conflict (type) do update set
       max_attempts = excluded.max_attempts,
       retry = excluded.retry,
       timeout_seconds = excluded.timeout_seconds,
       on_error = excluded.on_error,
       phases = excluded.phases,
       limits = excluded.limits,
       updated_at = excluded.updated_at
     where (t.max_attempts, t.retry, t.timeout_seconds, t.on_error, t.phases, t.limits)
        is distinct from (excluded.max_attempts, excluded.retry, excluded.timeout_seconds, excluded.on_error, excluded.phases, excluded.limits)
     returning t.type`,
    [JSON.stringify(definitions)],
  );
  // Daemons read declared limits with the tenants.
  if (changed.length > 0) await announceTenants(db);
}
