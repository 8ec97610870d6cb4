// The durable calls that wait for children: `fanOut` enqueues them once and waits, `waitForChildren` waits for those of
// `enqueue`. The job is WAITING meanwhile. When the children have ended, its handler runs again and the call returns.
import type { StepCall, StoredStep } from '../jobs/attempt/steps.ts';
import type { ChildEnd, ChildPolicy, ChildrenState } from '../jobs/flows/fenced-children.ts';
import type { JobErrorCode } from '../jobs/model/job-errors.ts';
import { type JobError, withoutTrace } from '../jobs/model/job-values.ts';
import { foreverMs } from '../jobs/model/waiting.ts';
import { refuseUnknownOptions } from './call-options.ts';
import type { DurableCalls } from './durable-calls.ts';
import type { ChildJob, ChildOutcome, ChildrenOptions, FanOutOptions } from './durable-context.ts';
import { Fatal } from './handler-errors.ts';
import type { ChildrenRequest } from './step-store.ts';

// One transaction enqueues them.
const maxChildren = 10_000;

export async function fanOut<T>(
  calls: DurableCalls,
  name: string,
  items: readonly T[],
  toJob: (item: T, index: number) => ChildJob,
  options: FanOutOptions = {},
): Promise<unknown[]> {
  refuseUnknownOptions('fanOut', options, ['concurrency', 'onFailure']);
  const { concurrency, onFailure } = options;
  if (items.length > maxChildren) throw new RangeError(`fanOut takes at most ${maxChildren} items`);
  if (concurrency !== undefined && !(Number.isInteger(concurrency) && concurrency > 0)) {
    throw new RangeError('concurrency must be a whole number above 0');
  }
  const policy = policyOf(onFailure);
  return callChildren(calls, name, items.length, onFailure, (call, stored) => ({
    call,
    onFailure: policy,
    concurrency,
    ...(stored === undefined && { open: { jobs: items.map((item, n) => checkedChild(toJob(item, n))) } }),
  }));
}

const childFields: readonly (keyof ChildJob)[] = [
  'type',
  'payload',
  'queue',
  'targetId',
  'priority',
  'runAt',
  'maxAttempts',
  'key',
];

/** The call waits only for its own children, because the job that holds a key may be waiting for this one. */
function checkedChild(job: ChildJob): ChildJob {
  if ('unique' in job) throw new RangeError('a child of fanOut cannot be unique');
  if ('after' in job) throw new RangeError('a child of fanOut cannot run after others');
  refuseUnknownOptions('a child of fanOut', job, childFields);
  return job;
}

export async function waitForChildren(
  calls: DurableCalls,
  name: string,
  ids: readonly string[],
  { onFailure }: ChildrenOptions = {},
): Promise<unknown[]> {
  const policy = policyOf(onFailure);
  return callChildren(calls, name, ids.length, onFailure, (call, stored) => ({
    call,
    onFailure: policy,
    ...(stored === undefined && { open: { ids } }),
  }));
}

function policyOf(onFailure: ChildrenOptions['onFailure']): ChildPolicy {
  switch (onFailure) {
    case undefined:
    case 'first':
      return 'stop';
    case 'all settled':
      return 'continue';
    default:
      throw new RangeError(`onFailure must be first or all settled, not ${JSON.stringify(onFailure)}`);
  }
}

function callChildren(
  calls: DurableCalls,
  name: string,
  count: number,
  onFailure: ChildrenOptions['onFailure'],
  toRequest: (call: StepCall, stored: StoredStep | undefined) => ChildrenRequest,
): Promise<unknown[]> {
  return calls.call('children', name, async (call, stored) => {
    if (stored?.status === 'completed') return stored.result as unknown[];
    calls.throwIfFailed(call, stored);
    const startedAt = performance.now();
    const request = toRequest(call, stored);
    const { total, unfinished, failed, ends } = await calls.store.children(request);
    if (total !== count) throw countChanged(name, total, count);
    if (failed !== null && request.onFailure === 'stop') throw calls.failed(call, startedAt, childFailed(failed));
    if (unfinished > 0 || ends === undefined) {
      // Never returns: the run is suspended, or stopped.
      await calls.wait({ kind: 'children', step: name, jobs: total }, foreverMs);
    }
    const results = (ends ?? []).map((end) => (onFailure === 'all settled' ? toOutcome(end) : end.result));
    const ms = performance.now() - startedAt;
    await calls.store.save([{ ...call, status: 'completed', result: results, tries: 1, ms }]);
    return results;
  });
}

function toOutcome({ id, status, result, error }: ChildEnd): ChildOutcome {
  if (status === 'SUCCESS' || status === 'PARTIAL') return { id, status: 'succeeded', result };
  const why = error === null ? undefined : withoutTrace(error);
  return { id, status: status === 'ERROR' ? 'failed' : 'canceled', ...(why && { error: why }) };
}

function childFailed({ id, type, status, error }: NonNullable<ChildrenState['failed']>): Fatal {
  const how = status === 'ERROR' ? 'failed' : status === null ? 'was deleted' : 'was canceled';
  const why = error === null ? '' : `: ${error.message}`;
  const child: { id: string; type: string | null; error: JobError | null } = {
    id,
    type,
    error: error && withoutTrace(error),
  };
  return new Fatal(`Child ${id}${type === null ? '' : ` (${type})`} ${how}${why}`, {
    code: 'CHILD_FAILED' satisfies JobErrorCode,
    details: { children: [child] },
  });
}

function countChanged(name: string, before: number, now: number): Fatal {
  return new Fatal(`An earlier run waited in "${name}" for ${before} children; this run has ${now}.`, {
    code: 'STEP_ORDER_CHANGED' satisfies JobErrorCode,
  });
}
