// The definition of a job type: its payload schema, and one `run` or ordered phases. Types only, except `defineJob`,
// which checks the definition and infers payload and results.
import type { z } from 'zod';
import type { RetryOptions } from '../../durable/durable-context.ts';
import { limitNamePattern, limitSetting } from '../../tenants/named-settings.ts';
import type { JobContext } from './job-context.ts';

export interface PhaseDefinition<P = unknown, N extends string = string, V = unknown, R = Record<string, unknown>> {
  name: N;
  run(context: JobContext<P, R>): V | Promise<V>;
  /** The schema of the result of `run`. */
  result?: z.ZodType<V>;
  /** If it returns false, the phase is skipped. */
  when?(context: { payload: P; phaseResults(): Partial<R> }): boolean | Promise<boolean>;
  /** A failure of this phase leaves the job PARTIAL instead of failing it. */
  tolerateFailure?: boolean;
  timeoutSeconds?: number;
  /** The number of tries of this phase within one attempt of the job. */
  retry?: RetryOptions;
}

/** `P` is the payload that handlers get, `C` the checkpoint, `I` the payload that is enqueued, `T` the type. */
export interface JobOptions<P = unknown, C = unknown, I = unknown, T extends string = string> {
  /** Letters, digits, dots, dashes and underscores, such as `invoices.send`. */
  type: T;
  payload?: z.ZodType<P> & { readonly _zod: { readonly input: I } };
  checkpoint?: z.ZodType<C>;
  retry?: RetryOptions;
  /** The time limit of one attempt; 0 for no limit. The default is the tenant's limit, then `JOB_TIMEOUT_SECONDS`. */
  timeoutSeconds?: number;
  /** `thread`: the handler runs in a worker thread, which is terminated if it does not stop. */
  isolation?: 'none' | 'thread';
  /** The effect of a failure on the lane: `block` (default) holds it, `continue` lets the next job run. */
  onError?: 'block' | 'continue';
  /** The effect of a durable wait on the lane: `keep` (default) keeps the lane, `release` lets the next job run. */
  whileWaiting?: 'keep' | 'release';
  /** How often jobs of this type may start, and how many may run at once, for each tenant. */
  limits?: readonly JobLimit[];
}

/** The types of a job for clients: enqueued payload, payload of the handler, and result. */
interface JobSignature<I = unknown, P = unknown, R = unknown> {
  readonly input: I;
  readonly payload: P;
  readonly result: R;
}

/** A checked definition; only `defineJob` creates it. */
export interface JobDefinition<T extends string = string, I = unknown, P = unknown, R = unknown>
  extends JobOptions<unknown, unknown, unknown, T> {
  readonly leasehold: typeof definitionMark;
  /** Never set; for the compiler only. An `import type` of a definition is enough to type its payload and result. */
  readonly types?: JobSignature<I, P, R>;
  // biome-ignore lint/suspicious/noExplicitAny: the payload's type is checked by its schema before it gets here.
  run?(context: JobContext<any, any, any>): unknown;
  // biome-ignore lint/suspicious/noExplicitAny: as above.
  phases?: readonly PhaseDefinition<any, string, any, any>[];
  /** The module that exports the definition; set if it was loaded from one. */
  file?: string;
  /** Runs the code in a thread; the registry sets it for `isolation: 'thread'`. */
  isolate?: Isolate;
}

/** Gets the parts of a context and the signal that ends the grace. */
// biome-ignore lint/suspicious/noExplicitAny: the parts are the worker's; their type here would be a circle.
type Isolate = (parts: any, kill: AbortSignal) => Promise<unknown>;

const definitionMark = 'job/1';
const typePattern = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/;

type Ph<P, N extends string, V, R> = PhaseDefinition<P, N, V, R>;
type And<R, N extends string, V> = R & { [K in N]: V };

/** Results by phase, as the job returns them. A phase that did not run has none. */
type Results<R> = { [K in keyof R]?: R[K] };

export function defineJob<P = unknown, C = unknown, I = P, const T extends string = string, R = unknown>(
  options: JobOptions<P, C, I, T> & {
    run(context: JobContext<P, Record<string, never>, C>): R | Promise<R>;
    phases?: never;
  },
): JobDefinition<T, I, P, R>;
/** With up to six phases, each one knows the result types of those before it; see `phaseResult`. */
export function defineJob<
  P,
  const N1 extends string,
  V1,
  const N2 extends string = never,
  V2 = never,
  const N3 extends string = never,
  V3 = never,
  const N4 extends string = never,
  V4 = never,
  const N5 extends string = never,
  V5 = never,
  const N6 extends string = never,
  V6 = never,
  I = P,
  const T extends string = string,
>(
  options: JobOptions<P, unknown, I, T> & {
    phases: readonly [
      Ph<P, N1, V1, Record<never, never>>,
      Ph<P, N2, V2, And<unknown, N1, V1>>?,
      Ph<P, N3, V3, And<And<unknown, N1, V1>, N2, V2>>?,
      Ph<P, N4, V4, And<And<And<unknown, N1, V1>, N2, V2>, N3, V3>>?,
      Ph<P, N5, V5, And<And<And<And<unknown, N1, V1>, N2, V2>, N3, V3>, N4, V4>>?,
      Ph<P, N6, V6, And<And<And<And<And<unknown, N1, V1>, N2, V2>, N3, V3>, N4, V4>, N5, V5>>?,
    ];
    run?: never;
  },
): JobDefinition<
  T,
  I,
  P,
  Results<And<And<And<And<And<And<unknown, N1, V1>, N2, V2>, N3, V3>, N4, V4>, N5, V5>, N6, V6>>
>;
/** Any number of phases; results of earlier ones are `unknown`. */
export function defineJob<P = unknown, I = P, const T extends string = string>(
  options: JobOptions<P, unknown, I, T> & { phases: readonly PhaseDefinition<P>[]; run?: never },
): JobDefinition<T, I, P, Record<string, unknown>>;
export function defineJob(options: object): JobDefinition {
  const definition = { ...options, leasehold: definitionMark } as JobDefinition;
  const problem = findDefinitionError(definition);
  if (problem) throw new TypeError(problem);
  return definition;
}

export function isDefinition(value: unknown): value is JobDefinition {
  return typeof value === 'object' && value !== null && (value as JobDefinition).leasehold === definitionMark;
}

/** Returns the reason why this is not a job definition; undefined if it is one. @internal */
function findDefinitionError(d: JobDefinition): string | undefined {
  if (typeof d.type !== 'string' || !typePattern.test(d.type)) {
    return `type must match ${typePattern.source}, not ${JSON.stringify(d.type)}`;
  }
  const at = `job "${d.type}"`;
  if ((d.run === undefined) === (d.phases === undefined)) return `${at} needs either run or phases`;
  if (d.run !== undefined && typeof d.run !== 'function') return `${at}: run must be a function`;
  if (d.payload !== undefined && typeof d.payload?.safeParse !== 'function')
    return `${at}: payload must be a zod schema`;
  const seconds = d.timeoutSeconds;
  if (seconds !== undefined && !(seconds >= 0)) return `${at}: timeoutSeconds must be 0 or more`;
  if (d.whileWaiting !== undefined && d.whileWaiting !== 'keep' && d.whileWaiting !== 'release')
    return `${at}: whileWaiting must be keep or release`;
  const limitError = findLimitError(d);
  if (limitError !== undefined) return `${at}: ${limitError}`;
  const attempts = d.retry?.attempts;
  if (attempts !== undefined && !(Number.isInteger(attempts) && attempts > 0)) {
    return `${at}: retry.attempts must be a whole number above 0`;
  }
  if (d.phases === undefined) return undefined;
  if (!Array.isArray(d.phases) || d.phases.length === 0) return `${at}: phases must be a list of at least one phase`;
  const names = new Set<string>();
  for (const phase of d.phases) {
    if (typeof phase?.name !== 'string' || !typePattern.test(phase.name))
      return `${at} has a phase without a good name`;
    if (names.has(phase.name)) return `${at} has two phases named "${phase.name}"`;
    if (typeof phase.run !== 'function') return `${at}: phase "${phase.name}" needs a run function`;
    names.add(phase.name);
  }
  return undefined;
}

// Limits that a job type declares.

export interface JobLimit {
  /** The default is the type. A limit of the same name in a tenant's settings replaces it. */
  name?: string;
  /** The number of starts per `per`, which defaults to a second. */
  rate?: number;
  per?: 'second' | 'minute' | 'hour' | 'day';
  /** The number of starts that may come at once after a pause; by default those of one second, at least 1. */
  burst?: number;
  /** The number of jobs that may run at once, on all daemons and workers. */
  concurrency?: number;
  /** Counts each value separately: `payload.account`, `target_id` or `author`. */
  key?: string;
}

/** Returns the reason why these limits are invalid; undefined if they are valid. */
function findLimitError({ type, limits }: { type: string; limits?: readonly JobLimit[] }): string | undefined {
  if (limits === undefined) return undefined;
  if (!Array.isArray(limits)) return 'limits must be a list';
  const names = new Set<string>();
  for (const [n, { name = n === 0 ? type : `${type}-${n + 1}`, ...limit }] of limits.entries()) {
    if (!limitNamePattern.test(name)) return `the name of a limit must match ${limitNamePattern.source}, not "${name}"`;
    if (names.has(name)) return `two limits are named "${name}"`;
    names.add(name);
    const issue = limitSetting.safeParse(limit).error?.issues[0];
    if (issue !== undefined)
      return `limit "${name}": ${[issue.path.join('.'), issue.message].filter(Boolean).join(' ')}`;
  }
  return undefined;
}
