// What enqueueing needs to know about job types. The worker's registry of handlers implements it; that of a daemon for
// remote workers only is empty. API, schedules and handlers check payloads and take defaults from it.
import type { RetryPolicy } from '../model/job.ts';

export interface TypeDefaults {
  maxAttempts?: number;
  retry?: RetryPolicy;
  timeoutSeconds?: number;
  onError?: 'block' | 'continue';
  phases?: string[];
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
