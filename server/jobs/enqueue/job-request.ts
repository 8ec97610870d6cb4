// A job as a client requests it, and the conversion to a job to enqueue. HTTP routes use it, and features that store a
// request for later, such as schedules.
import { createHash } from 'node:crypto';
import { z } from 'zod';
import type { LiveDaemon } from '../../daemon-registry/live-daemons.ts';
import { defaultBackoff } from '../../kernel/backoff.ts';
import { largeBytes, ownTurn } from '../../kernel/clock.ts';
import { problem } from '../../kernel/errors.ts';
import { httpUrlField, invalidFields, nameField, normalizeUrl, targetIdField, timeField } from '../../kernel/fields.ts';
import { canonicalJson, JsonText } from '../../kernel/json/json-text.ts';
import { maxInt4, maxSeconds } from '../../kernel/limits.ts';
import { unitAmounts } from '../../tenants/named-settings.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { afterField, shortestEdge } from '../flows/after-request.ts';
import { limitKeysOf } from '../limits/limit-keys.ts';
import { requestColumns, sqlName } from '../model/columns.ts';
import { priorities, type RetryPolicy } from '../model/job.ts';
import type { Units } from '../model/job-budget.ts';
import type { NewJob } from './enqueue.ts';
import { checkDocument, noteLimitBytes } from './enqueue-limits.ts';
import type { JobTypes, TypeDefaults } from './job-types.ts';

const seconds = (min: number) => z.number().min(min).max(maxSeconds);

export const retryRequest = z
  .strictObject({
    kind: z.enum(['fixed', 'linear', 'exponential']).optional(),
    delay_seconds: seconds(0).optional(),
    max_delay_seconds: seconds(0).optional(),
    jitter: z.number().min(0).max(1).optional().describe('Share of the delay that is random.'),
    codes: z.array(nameField(100)).max(100).optional().describe('Error codes that count as recoverable.'),
  })
  .meta({ id: 'RetryPolicy' });

export const clientRequestId = z.string().min(1).max(200);

export const uniqueRequest = z
  .strictObject({
    key: nameField().describe('Of this type, at most one job holds the key at a time.'),
    until: z
      .union([z.enum(['started', 'finished']), z.int().min(1).max(maxSeconds)], {
        error: `must be started, finished, or a whole number of seconds from 1 to ${maxSeconds}`,
      })
      .default('finished')
      .describe('How long a job holds it: until it first starts, until it has ended, or for so many seconds.'),
    conflict: z
      .enum(['skip', 'replace', 'debounce'])
      .default('skip')
      .describe(
        'If the key is held: `skip` changes nothing, `replace` gives the job that waits the new payload, `debounce` also the new `run_at`.',
      ),
  })
  .meta({ id: 'UniqueRequest' });

export const jobRequest = z
  .strictObject({
    type: nameField(),
    payload: z.unknown().optional().describe('Any JSON value; null and nothing count as {}.'),
    target_id: targetIdField().optional().describe('The lane to stand in. Without one the job runs beside all others.'),
    priority: z.enum(priorities).optional(),
    queue: nameField().optional(),
    run_at: timeField().optional().describe('Not before this time.'),
    max_attempts: z.int().min(1).max(100).optional(),
    retry: retryRequest.optional(),
    timeout_seconds: seconds(0)
      .optional()
      .describe(
        'Most time for one attempt; 0 means no limit. Default: that of its type, else of the tenant, else of the daemon.',
      ),
    expires_in_seconds: seconds(0.001).optional().describe('If it has not started by then, it fails with EXPIRED.'),
    token_limit: z.int().min(0).optional().describe('Most tokens over all attempts; 0 means no limit.'),
    budget: unitAmounts
      .optional()
      .describe('How much the job may use of each unit, over all attempts: `{ "cents": 500 }`; 0 means no limit.'),
    cost_units: z.int().min(1).max(maxInt4).optional(),
    constraints: z.record(z.string().max(200), z.unknown()).optional(),
    on_error: z.enum(['block', 'continue']).optional().describe('Whether a failure holds the lane.'),
    on_drain: z.enum(['pause', 'requeue']).optional(),
    webhook_url: httpUrlField().optional(),
    client_request_id: clientRequestId
      .optional()
      .describe('Makes the request idempotent; as the Idempotency-Key header.'),
    after: afterField.optional(),
    unique: uniqueRequest.optional(),
    author: nameField().optional().describe('Who asks for it, for people who read its history.'),
  })
  .meta({ id: 'JobRequest' });
export type JobRequest = z.output<typeof jobRequest>;

export interface RequestContext {
  tenant: Pick<Tenant, 'settings' | 'limits'>;
  jobTypes: JobTypes;
  /** Called only for types that this process does not run. */
  liveDaemons(): Promise<LiveDaemon[]>;
  traceparent?: string | undefined;
}

/** Checks the type and its payload, and applies the defaults of the type. */
export async function toNewJob(request: JobRequest, context: RequestContext): Promise<NewJob> {
  const source = await locateType(request.type, context);
  const given = request.payload ?? {};
  const payload = source === 'local' ? checkedPayload(context.jobTypes, request.type, given) : given;
  const text = checkDocument(payload, 'payload');
  // Checking and hashing a payload each take up to half of the 50 ms for which the event loop may be blocked.
  const isLarge = text.length >= largeBytes;
  if (isLarge) await ownTurn();
  checkDocument(request.constraints, 'constraints', noteLimitBytes);
  const defaults = context.jobTypes.defaults(request.type);
  const job = sameColumns(request);
  job.type = request.type;
  job.payload = payload;
  job.remote = source === 'remote';
  job.maxAttempts = request.max_attempts ?? defaults.maxAttempts;
  job.retry = toRetryPolicy(request.retry, defaults.retry);
  job.timeoutSeconds = request.timeout_seconds ?? defaults.timeoutSeconds;
  job.expiresInSeconds = request.expires_in_seconds;
  job.onError = request.on_error ?? defaults.onError;
  job.webhookUrl = request.webhook_url === undefined ? undefined : normalizeUrl(request.webhook_url);
  if (request.client_request_id !== undefined) Object.assign(job, requestHashes(request));
  job.traceparent = context.traceparent;
  Object.assign(job, ownBudgets(request));
  job.phases = defaults.phases;
  if (request.unique !== undefined) job.unique = { ...request.unique, limits: context.tenant.limits };
  job.limitKeys = limitKeysOf(context.tenant.limits, job);
  // The parsed payload is not read any more: its text goes into the statement and the answer.
  if (isLarge) job.payload = new JsonText(text);
  return job;
}

/** The budgets that a request gives to its job. Tokens have a limit of their own. */
export function ownBudgets({
  budget = {},
  token_limit,
}: {
  budget?: Units | undefined;
  token_limit?: number | null | undefined;
}): Pick<NewJob, 'budget' | 'tokenLimit'> {
  const { tokens, ...others } = budget;
  return {
    budget: Object.keys(others).length === 0 ? undefined : others,
    tokenLimit: token_limit ?? (tokens === undefined ? undefined : Math.floor(tokens)),
  };
}

type TypeLocation = 'local' | 'otherDaemon' | 'remote';

/** Returns which workers could run jobs of the type. Refuses a type that no worker runs, and names the known types. */
async function locateType(type: string, context: RequestContext): Promise<TypeLocation> {
  const { tenant, jobTypes } = context;
  if (jobTypes.has(type)) return 'local';
  const remoteTypes = tenant.settings.remote_job_types ?? [];
  if (remoteTypes.includes('*') || remoteTypes.includes(type)) return 'remote';
  // Daemons may run different types; this one may only serve the API.
  const elsewhere = (await context.liveDaemons()).flatMap((daemon) => daemon.jobTypes);
  if (elsewhere.includes(type)) return 'otherDaemon';
  const types = [...new Set([...jobTypes.types(), ...elsewhere])].sort();
  const list = types.length === 0 ? 'No types are known.' : `Known types: ${types.join(', ')}.`;
  throw problem('UNKNOWN_JOB_TYPE', `No handler or worker knows the job type ${JSON.stringify(type)}. ${list}`, {
    field: 'type',
    known_types: types,
  });
}

/** Fields that are columns of the job under the same name, such as `target_id`. */
function sameColumns(request: JobRequest): NewJob {
  const given: Readonly<Record<string, unknown>> = request;
  const job: Record<string, unknown> = { ...blank };
  for (const [column, field] of columnFields) job[column] = given[field];
  return job as unknown as NewJob;
}

const columnFields = requestColumns.map((column) => [column, sqlName(column)] as const);
/** Has every key from the start: adding keys one by one makes an object several times as expensive. */
const blank = Object.fromEntries(
  [...requestColumns, 'expiresInSeconds', 'phases', 'earlierHash'].map((name) => [name, undefined]),
);

function checkedPayload(jobTypes: JobTypes, type: string, given: unknown): unknown {
  const check = jobTypes.checkPayload(type, given);
  if (check.ok) return check.payload;
  throw invalidFields([{ field: check.field, message: check.message }]);
}

function toRetryPolicy(request: JobRequest['retry'], defaults: TypeDefaults['retry']): RetryPolicy | undefined {
  if (request === undefined) return defaults;
  const base: RetryPolicy = defaults ?? defaultBackoff;
  const codes = request.codes ?? base.codes;
  return {
    kind: request.kind ?? base.kind,
    delaySeconds: request.delay_seconds ?? base.delaySeconds,
    maxDelaySeconds: request.max_delay_seconds ?? base.maxDelaySeconds,
    jitter: request.jitter ?? base.jitter,
    ...(codes !== undefined && { codes }),
  };
}

interface RequestHashes {
  requestHash: string;
  /** A second hash, if an earlier version hashed the same request differently. */
  earlierHash: string | undefined;
}

/**
 * Returns the same hash for two requests for the same job. The SQL function `enqueue` of a tenant's schema computes the
 * same hash.
 * @internal Exported for its test.
 */
export function requestHashes(request: JobRequest): RequestHashes {
  const { payload, priority, queue, after, ...rest } = request;
  const asked = {
    ...rest,
    payload: payload ?? {},
    priority: priority === 'NORMAL' ? undefined : priority,
    queue: queue === 'default' ? undefined : queue,
    after: after === undefined || after.length === 0 ? undefined : after.map(shortestEdge),
  };
  const hasDefaults = payload == null || priority !== asked.priority || queue !== asked.queue || after !== undefined;
  return { requestHash: requestHash(asked), earlierHash: hasDefaults ? requestHash(request) : undefined };
}

/** Returns the same hash for two requests that differ only in the order of their fields. `scope` separates two APIs. */
export function requestHash({ client_request_id: _, ...asked }: Readonly<Record<string, unknown>>, scope = ''): string {
  return createHash('sha256')
    .update(scope + canonicalJson(asked))
    .digest('base64url');
}
