// The context of a handler. Its members, including functions, are created on first use, so unused ones cost nothing.
// They may be destructured: `({ payload, progress, sleep }) => …`.
import { DurableFunctions, type DurableParts } from '../../durable/durable-functions.ts';
import { Fatal } from '../../durable/handler-errors.ts';
import { type Stopping, sleep, stopped, throwIfLeaseLost } from '../../durable/stop-reason.ts';
import type { JobErrorCode } from '../../jobs/model/job-errors.ts';
import type { JobDefinition } from '../handlers/define-job.ts';
import type { JobContext, JobInfo, Lease, LogFunction } from '../handlers/job-context.ts';
import type { Effects, LeaseTrust, PhaseScope } from './handler-run.ts';

export interface ContextParts extends DurableParts {
  job: JobInfo;
  leaseId: string;
  /** The stored JSON text, for a thread that parses it. */
  stored: { payload: unknown; checkpoint: unknown };
  payload: unknown;
  /** The signal is aborted with a StopReason, and created on first use. */
  stopping: Stopping & LeaseTrust;
  lastCheckpoint: unknown;
  phase?: PhaseScope | undefined;
  /** The results of completed phases, by name. */
  results: Readonly<Record<string, unknown>>;
  effects(): Effects;
  onPartial(reason: string): void;
}

class Context extends DurableFunctions implements JobContext {
  readonly job: JobInfo;
  readonly payload: unknown;
  readonly lastCheckpoint: unknown;
  readonly #parts: ContextParts;
  #signal: AbortSignal | undefined;
  #log: LogFunction | undefined;
  #lease: Lease | undefined;

  constructor(parts: ContextParts) {
    super(parts);
    this.#parts = parts;
    this.job = parts.job;
    this.payload = parts.payload;
    this.lastCheckpoint = parts.lastCheckpoint;
  }

  get signal(): AbortSignal {
    this.#signal ??= withErrorReason(this.#parts.stopping.signal);
    return this.#signal;
  }

  get lease(): Lease {
    const { leaseId, job, effects } = this.#parts;
    this.#lease ??= {
      id: leaseId,
      fence: `${job.id}:${job.attempt}:${leaseId}`,
      assert: async () => {
        await effects().assertLease();
      },
    };
    return this.#lease;
  }

  get log(): LogFunction {
    const { effects } = this.#parts;
    this.#log ??= Object.assign(
      (message: string, data?: Record<string, unknown>) => effects().log('info', String(message), data),
      {
        warn: (message: string, data?: Record<string, unknown>) => effects().log('warn', String(message), data),
        error: (message: string, data?: Record<string, unknown>) => effects().log('error', String(message), data),
      },
    );
    return this.#log;
  }

  get progress() {
    return (percent: number, message?: string): void => {
      const value = Number(percent);
      if (Number.isNaN(value)) throw new TypeError('progress needs a number from 0 to 100');
      this.#parts.effects().progress(Math.min(100, Math.max(0, value)), message, this.#parts.phase);
    };
  }

  get phaseResult() {
    return (name: string): unknown => this.#parts.results[name];
  }

  get phaseResults() {
    return (): Record<string, unknown> => ({ ...this.#parts.results });
  }

  get sleep() {
    return (ms: number): Promise<void> => sleep(ms, this.#parts.stopping);
  }

  get checkpoint() {
    return async (state: unknown): Promise<void> => {
      await this.#parts.effects().checkpoint(state);
      await throwIfLeaseLost(this.#parts.stopping);
    };
  }

  get markPartial() {
    return (reason: string): void => this.#parts.onPartial(String(reason));
  }
}

/** The same signal with an Error as its reason, so that fetch and others reject with a readable error. */
function withErrorReason(signal: AbortSignal): AbortSignal {
  const controller = new AbortController();
  const abort = () => controller.abort(stopped(signal));
  if (signal.aborted) abort();
  else signal.addEventListener('abort', abort, { once: true });
  return controller.signal;
}

/** Runs a definition's code in this thread: the job's `run`, or the phase named in `parts`. */
export function invokeHere(definition: JobDefinition, parts: ContextParts): unknown {
  const context = new Context(parts);
  const { phase } = parts;
  if (phase === undefined) return definition.run?.(context);
  return definition.phases?.find((one) => one.name === phase.name)?.run(context);
}

/**
 * Parses the payload with its schema. The enqueue has checked it, but the schema may have changed, and its output is
 * needed here.
 */
export function parsePayload(definition: JobDefinition, payload: unknown): unknown {
  if (definition.payload === undefined) return payload;
  const parsed = definition.payload.safeParse(payload);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  const field = ['payload', ...(issue?.path ?? [])].join('.');
  throw new Fatal(`${field}: ${issue?.message ?? 'is not valid'}`, { code: 'INVALID_PAYLOAD' satisfies JobErrorCode });
}

/** A stored checkpoint that does not match its schema is ignored. */
export function parseCheckpoint(definition: JobDefinition, stored: unknown): unknown {
  if (stored === null || stored === undefined) return undefined;
  if (definition.checkpoint === undefined) return stored;
  const parsed = definition.checkpoint.safeParse(stored);
  return parsed.success ? parsed.data : undefined;
}
