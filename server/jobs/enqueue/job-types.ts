// What the rest of the product knows about job types: the worker's registry is one, a remote-only
// daemon's is empty. Those who put jobs in (API, schedules, handlers) check and fill them here.
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
  types(): string[];
  has(type: string): boolean;
  /** The payload as given, or what is wrong with it. A type without a handler takes anything. */
  checkPayload(type: string, payload: unknown): CheckedPayload;
  /** What the type's definition says where the request is silent. */
  defaults(type: string): TypeDefaults;
}
