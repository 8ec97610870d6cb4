// What a remote worker is given: its options, the job and the means to report on it.

export interface WorkerOptions {
  /** `http://127.0.0.1:8080` */
  url: string;
  /** An API key with the scope `worker`. */
  key: string;
  /** The queue (`addon_id`) to take jobs from. */
  queue: string;
  /** Must be unique among running workers; a new one for each process. */
  workerId?: string;
  jobTypes?: string[];
  maxCostUnits?: number;
  /** `{ gpu_available: true }` takes jobs with `gpu_required`. */
  capabilities?: Record<string, boolean>;
  /** Jobs at once; default 1. */
  concurrency?: number;
  /** How long a lease lives without a heartbeat; default 30. Heartbeats are sent three times in it. */
  ttlSeconds?: number;
  /** How long running jobs may continue after `drain()` before they are requeued; default 60. */
  drainSeconds?: number;
  log?: (message: string, fields: Record<string, unknown>) => void;
  fetch?: typeof fetch;
}

export interface RemoteJob {
  job_id: string;
  job_type: string;
  payload: unknown;
  cost_units: number;
  attempts: number;
  [field: string]: unknown;
}

export interface Work {
  job: RemoteJob;
  /** The fence: pass it on with outside effects, so that the receiver can refuse the writes of a worker that lost its lease. */
  leaseId: string;
  /** Aborted with a `Stopped` when the handler must end: throw, for example with `signal.throwIfAborted()`. */
  signal: AbortSignal;
  /** Sent with the next heartbeat. */
  report(progress: number, message?: string): void;
  /**
   * Asks a person. Without an answer yet the job waits, the lease ends, and this rejects with `Stopped`: let it pass. The
   * handler runs again when the answer has come, here or in another worker, and then gets it.
   */
  ask(question: RemoteQuestion): Promise<RemoteAnswer>;
}

/** A question to a person; docs/questions.md describes the fields. */
export interface RemoteQuestion {
  /** Identifies the question among those of the job. */
  name: string;
  title: string;
  context?: unknown;
  /** JSON Schema of the answer, of type `object`. */
  schema?: Record<string, unknown>;
  actions?: { name: string; label?: string; style?: 'primary' | 'danger'; answer?: Record<string, unknown> }[];
  assignees?: string[];
  timeout_seconds?: number;
  on_timeout?: 'fail' | { answer?: Record<string, unknown>; action?: string };
  reminders?: number[];
  escalate_to?: { assignees: string[]; after_seconds: number };
}

/** The fields of the answer; `action` is the chosen one, if the question has actions. */
export type RemoteAnswer = Record<string, unknown>;

/** Returns the job's result, or throws. `recoverable = false` on the error makes a failure final. */
export type Handler = (work: Work) => Promise<unknown>;

export class Stopped extends Error {
  readonly reason: 'cancel' | 'pause' | 'drain' | 'leaseLost' | 'waiting';
  constructor(reason: Stopped['reason']) {
    super(`stopped: ${reason}`);
    this.name = 'Stopped';
    this.reason = reason;
  }
}
