// The messages between the main thread and the heartbeat thread. Plain data only.
import type { LiveJob } from '../../jobs/claim/lease.ts';

export interface HeartbeatOptions {
  url: string;
  intervalMs: number;
  leaseSeconds: number;
  stallMs: number;
  timeoutMs: number;
  /** Words that both threads read and write, see shared-leases.ts. */
  signs: SharedArrayBuffer;
  leases: SharedArrayBuffer;
}

export type ToThread =
  /** Sent before the first lease of the tenant is added under this number. */
  | { kind: 'tenant'; number: number; schema: string; role: string | undefined }
  | { kind: 'leases'; buffer: SharedArrayBuffer }
  /** There are leases again. */
  | { kind: 'wake' }
  | { kind: 'reconnect' }
  | { kind: 'stop' };

export interface Renewal {
  schema: string;
  leaseIds: readonly string[];
  sentAt: bigint;
  /** The jobs that the leases still own. */
  live: LiveJob[];
}

export type FromThread =
  | ({ kind: 'renewed' } & Renewal)
  | { kind: 'failed'; schema: string; message: string }
  | { kind: 'stalled' };
