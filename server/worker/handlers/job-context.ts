// The context that a handler gets. Types only.
import type { DurableContext } from '../../durable/durable-context.ts';

export interface JobInfo {
  readonly id: string;
  readonly type: string;
  readonly tenant: string;
  readonly targetId: string | null;
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly createdAt: string;
  readonly parentId: string | null;
  readonly author: string | null;
}

export interface Lease {
  readonly id: string;
  /** `<job id>:<attempt>:<lease id>`. Pass it on with outside effects, so that the receiver can refuse a stale one. */
  readonly fence: string;
  /** Rejects, and stops the handler, if the lease is no longer held. Call it right before an outside effect. */
  assert(): Promise<void>;
}

export interface LogFunction {
  (message: string, data?: Record<string, unknown>): void;
  warn(message: string, data?: Record<string, unknown>): void;
  error(message: string, data?: Record<string, unknown>): void;
}

/** `P` is the payload, `R` the results of earlier phases by name, `C` the checkpoint. */
export interface JobContext<P = unknown, R = Record<string, unknown>, C = unknown> extends DurableContext {
  readonly job: JobInfo;
  readonly payload: P;
  /** Aborted when the handler must stop; its reason is a `JobStopped`. */
  readonly signal: AbortSignal;
  /** The value of the last `checkpoint` call of an earlier attempt. */
  readonly lastCheckpoint: C | undefined;
  readonly lease: Lease;
  readonly log: LogFunction;
  /** From 0 to 100, of the phase if there are phases. Stored at once; many calls in a short time become one write. */
  progress(percent: number, message?: string): void;
  phaseResult<K extends keyof R & string>(name: K): R[K] | undefined;
  phaseResults(): Partial<R>;
  /** Waits in this process. Rejects with `JobStopped` when the handler must stop. */
  sleep(ms: number): Promise<void>;
  /** Stores a state that the next attempt finds in `lastCheckpoint`. */
  checkpoint(state: C): Promise<void>;
  /** Marks the result as incomplete: the phase ends as partial, and the job as PARTIAL. */
  markPartial(reason: string): void;
}
