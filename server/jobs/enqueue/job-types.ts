// Job types as enqueueing sees them. The worker's registry of handlers implements this interface; in a daemon for
// remote workers only, the registry is empty. The API, schedules and handlers use it to check payloads and apply
// defaults.
import type { Queryable } from '../../database/database.ts';
import { controlSchema } from '../../database/identifiers.ts';
import { runQuery } from '../../database/sql.ts';
import type { LimitSetting } from '../../tenants/named-settings.ts';
import { announceTenants } from '../../tenants/tenant-store.ts';
import type { RetryPolicy } from '../model/job.ts';

export interface TypeDefaults {
  maxAttempts?: number;
  retry?: RetryPolicy;
  timeoutSeconds?: number;
  onError?: 'block' | 'continue';
  phases?: string[];
  /** Limits by name. */
  limits?: Record<string, LimitSetting>;
}

export type CheckedPayload = { ok: true; payload: unknown } | { ok: false; field: string; message: string };

export interface JobTypes {
  types(): readonly string[];
  has(type: string): boolean;
  /**
   * Parses the payload with the type's schema, or returns the first error. A type without a handler accepts any
   * payload.
   */
  checkPayload(type: string, payload: unknown): CheckedPayload;
  /** Returns the defaults that the type has for fields missing in a request. */
  defaults(type: string): TypeDefaults;
}

/** Stores the definitions for callers that enqueue in SQL; see the function `enqueue` of a tenant's schema. */
export async function publishJobTypes(db: Queryable, jobTypes: JobTypes): Promise<void> {
  const definitions = [...jobTypes.types()].map((type) => ({ type, ...jobTypes.defaults(type) }));
  if (definitions.length === 0) return;
  // All daemons write in the same order, so that two that start together do not deadlock.
  const changed = await runQuery<{ type: string }>(
    db,
    `insert into ${controlSchema}.job_types as t (type, max_attempts, retry, timeout_seconds, on_error, phases, limits)
     select type, "maxAttempts", retry, "timeoutSeconds", "onError", phases, limits
       from jsonb_to_recordset(:definitions::jsonb) as d(
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
    { definitions: JSON.stringify(definitions) },
  );
  // Daemons read declared limits with the tenants.
  if (changed.length > 0) await announceTenants(db);
}
