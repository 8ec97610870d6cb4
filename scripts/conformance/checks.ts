// What a worker must do to be certified. Each check is alone on its stage; none depends on another.
import { maxWaitMs, type Settings, type Stage, wait } from './stage.ts';

export interface Check {
  name: string;
  promise: string;
  settings: Settings;
  run(stage: Stage): Promise<void>;
}

// A trace or request that was under way when the worker had to stop.
const underWayMs = 250;
// The worker waits for each trace: if its process or this one stands still for a moment, one of them comes late.
const maxLateTraces = 1;
/** Reads without a new trace after which the worker has stopped; counted, because this process may stand still too. */
const quietReads = 40;
const readTracesEveryMs = 50;

export const checks: readonly Check[] = [
  {
    name: 'cancel',
    promise: 'sees a cancel with its heartbeat, stops, and releases before its lease would have run out',
    settings: { ttlSeconds: 15, concurrency: 1 },
    run: seesCancel,
  },
  {
    name: 'lease',
    promise: 'leaves no trace and sends nothing once its lease is lost, told or not',
    settings: { ttlSeconds: 10, concurrency: 1 },
    run: stopsWithoutLease,
  },
  {
    name: 'drain',
    promise: 'after SIGTERM claims nothing, ends or gives back what runs, and exits with 0',
    settings: { ttlSeconds: 60, concurrency: 1 },
    run: drains,
  },
  {
    name: 'capacity',
    promise: 'works only under a granted lease, waits as long as it is told, holds no more leases than it may',
    settings: { ttlSeconds: 60, concurrency: 2 },
    run: keepsToCapacity,
  },
  {
    name: 'restart',
    promise: 'outlives a server that is gone for a while, with its job and without',
    settings: { ttlSeconds: 30, concurrency: 1 },
    run: survivesRestart,
  },
];

async function seesCancel(stage: Stage): Promise<void> {
  const jobId = await stage.submit(120);
  await stage.working(jobId);
  const { lease_id } = await stage.read(jobId);
  const ttlMs = ttlOf(stage, jobId);
  await stage.cancel(jobId);
  await stage.ended(jobId, ['CANCELED'], ttlMs + 1000, `the job was not released within ${ttlMs} ms of its cancel`);
  const endedAt = performance.now();
  if (lease_id !== null && (await stage.leaseState(lease_id)) !== 'RELEASED')
    throw stage.failed('the lease ran out instead of being released');
  await wait(2 * underWayMs);
  const late = stage.effects.of(jobId).filter((trace) => trace.at > endedAt + underWayMs);
  if (late.length > 0) throw stage.failed('the worker went on after its release');
}

async function stopsWithoutLease(stage: Stage): Promise<void> {
  await stopsWhenRequested(stage);
  await stopsUntold(stage);
}

/** The server says 409 to a heartbeat: somebody else may have the job already. */
async function stopsWhenRequested(stage: Stage): Promise<void> {
  const jobId = await stage.submit(120);
  await stage.working(jobId);
  let requestedAt: number | undefined;
  stage.proxy.intercept = (exchange) => {
    if (!/\/heartbeat$/.test(exchange.path) || exchange.body?.job_id !== jobId) return undefined;
    requestedAt ??= performance.now();
    return { status: 409, body: { code: 'LEASE_LOST', detail: 'The lease is EXPIRED.' } };
  };
  await stage.until(() => requestedAt !== undefined, ttlOf(stage, jobId), 'no heartbeat came within the ttl');
  const since = (requestedAt ?? 0) + underWayMs;
  if (!(await fallsQuiet(stage, jobId, since + 500)))
    throw stage.failed('the worker went on after a heartbeat was answered with 409');
  if (leaseWrites(stage, jobId).some((exchange) => exchange.at > since))
    throw stage.failed('the worker wrote with a lease that it was told is lost');
  stage.proxy.intercept = () => undefined;
}

/** Whether the worker leaves no trace any more; at once if it leaves too many. */
async function fallsQuiet(stage: Stage, jobId: string, since: number): Promise<boolean> {
  let seen = 0;
  for (let quiet = 0; quiet < quietReads; quiet++) {
    await wait(readTracesEveryMs);
    const late = tracesAfter(stage, jobId, since).length;
    if (late > maxLateTraces) return false;
    if (late > seen) quiet = 0;
    seen = late;
  }
  return true;
}

function tracesAfter(stage: Stage, jobId: string, at: number) {
  return stage.effects.of(jobId).filter((trace) => trace.at > at);
}

/** Nobody answers: only the worker's own clock can tell that the lease is over. */
async function stopsUntold(stage: Stage): Promise<void> {
  const jobId = await stage.submit(120);
  await stage.working(jobId);
  const ttlMs = ttlOf(stage, jobId);
  const beats = () => leaseWrites(stage, jobId).filter((exchange) => exchange.status === 200);
  await stage.until(() => beats().length > 0, ttlMs, 'no heartbeat came within the ttl');
  stage.proxy.fallSilent();
  const expiresAt = Math.max(...beats().map((exchange) => exchange.at)) + ttlMs;
  await wait(expiresAt - performance.now() + 1500);
  const late = tracesAfter(stage, jobId, expiresAt);
  const last = late.at(-1)?.at ?? 0;
  if (late.length > maxLateTraces)
    throw stage.failed(`the worker went on for ${Math.round(last - expiresAt)} ms without a lease`);
  stage.proxy.speakAgain();
  await wait(1500);
  if (leaseWrites(stage, jobId).some((exchange) => exchange.at > expiresAt))
    throw stage.failed('the worker wrote with a lease that had run out');
}

async function drains(stage: Stage): Promise<void> {
  const running = await stage.submit(2);
  const waiting = await stage.submit(2);
  await stage.working(running);
  stage.signal('SIGTERM');
  const requestedAt = performance.now();
  const claims = () => stage.proxy.find(/\/jobs\/claim$/).filter((e) => e.at > requestedAt + underWayMs);
  await stage.until(
    () => stage.exit !== undefined || claims().length > 0,
    maxWaitMs,
    `the worker did not exit within ${maxWaitMs} ms of SIGTERM`,
  );
  if (claims().length > 0) throw stage.failed('the worker claimed after SIGTERM');
  if (stage.exit?.code !== 0) throw stage.failed('a drained worker must exit with 0');
  const left = await stage.read(running);
  if (left.state !== 'DONE' && left.state !== 'QUEUED')
    throw stage.failed(`the running job was left behind: it is ${left.state}`);
  const untouched = await stage.read(waiting);
  if (untouched.state !== 'QUEUED') throw stage.failed(`a waiting job was taken: it is ${untouched.state}`);
}

async function keepsToCapacity(stage: Stage): Promise<void> {
  const retryAfterMs = 1000;
  const deniedAt = new Map<string, number>();
  const early: string[] = [];
  stage.proxy.intercept = ({ path, body, at }) => {
    if (!path.endsWith('/lease/request')) return undefined;
    const denied = deniedAt.get(body.job_id);
    if (denied !== undefined) {
      if (at < denied + retryAfterMs - 50) early.push(body.job_id);
      return undefined;
    }
    deniedAt.set(body.job_id, at);
    const reason = 'Capacity exceeded: used=70, requested=1, capacity=70';
    return { status: 200, body: { approved: false, retry_after_sec: retryAfterMs / 1000, reason } };
  };
  const jobs = await Promise.all([1, 1, 1, 1].map((seconds) => stage.submit(seconds)));
  const finished = async () => (await Promise.all(jobs.map((id) => stage.read(id)))).every((j) => j.state === 'DONE');
  const withoutLease = () =>
    stage.effects.traces.find((trace) => trace.at < (grantOf(stage, trace.jobId)?.at ?? Infinity));
  await stage.until(
    async () => withoutLease() !== undefined || (await finished()),
    maxWaitMs,
    'not all jobs were done in the end',
  );
  if (withoutLease()) throw stage.failed('the worker worked without a granted lease');
  if (early.length > 0) throw stage.failed('the worker asked again before retry_after_sec was over');
  const max = maxLeasesAtOnce(stage, jobs);
  if (max > 2) throw stage.failed(`the worker held ${max} leases at once; it may hold 2`);
}

async function survivesRestart(stage: Stage): Promise<void> {
  const running = await stage.submit(4);
  await stage.working(running);
  await stage.proxy.cut();
  await wait(2000);
  await stage.proxy.open();
  await stage.ended(running, ['DONE'], maxWaitMs, 'the job that ran during the restart was not finished');
  if ((await stage.read(running)).attempts !== 1) throw stage.failed('the job had to be started again');
  await stage.proxy.cut();
  await wait(1000);
  await stage.proxy.open();
  const next = await stage.submit(0.2);
  await stage.ended(next, ['DONE'], maxWaitMs, 'the worker took no job after the restart');
}

function grantOf(stage: Stage, jobId: string) {
  return stage.proxy.find(/\/lease\/request$/).find((e) => e.body?.job_id === jobId && e.answer?.approved === true);
}

export function leaseWrites(stage: Stage, jobId: string) {
  return stage.proxy.find(/\/lease\/[^/]+\/(heartbeat|release)$/).filter((e) => e.body?.job_id === jobId);
}

/** What the worker asked for and got: its own deadlines come from it. */
function ttlOf(stage: Stage, jobId: string): number {
  const ttl = grantOf(stage, jobId)?.answer?.lease?.ttl_sec;
  if (typeof ttl !== 'number') throw stage.failed('the worker works without a granted lease');
  return ttl * 1000;
}

function maxLeasesAtOnce(stage: Stage, jobs: readonly string[]): number {
  const changes = jobs.flatMap((jobId) => {
    const granted = grantOf(stage, jobId)?.at;
    const released = leaseWrites(stage, jobId).find((e) => e.path.endsWith('/release'))?.at ?? Infinity;
    return granted === undefined
      ? []
      : [
          { at: granted, by: 1 },
          { at: released, by: -1 },
        ];
  });
  let now = 0;
  let max = 0;
  for (const change of changes.sort((a, b) => a.at - b.at)) {
    now += change.by;
    max = Math.max(max, now);
  }
  return max;
}
