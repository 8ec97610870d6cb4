// Ends the attempt of a remote worker that has to wait. The job becomes WAITING, its lease ends, and any worker may
// claim the job when the wait is over.
import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { statement, tenant } from '../database/sql.ts';
import { retryConflicts } from '../database/sql-errors.ts';
import { finishAttemptsIn } from '../jobs/finish/finish.ts';
import type { Outcome } from '../jobs/finish/outcome.ts';
import { supersedingOutcome } from '../jobs/finish/stop-decisions.ts';
import { lockTargets } from '../jobs/lanes/lane.ts';
import type { BudgetRules } from '../jobs/model/job-budget.ts';
import { type Waiting, type WaitKind, waitKinds } from '../jobs/model/waiting.ts';
import { invalidFields } from '../kernel/fields.ts';
import { getSchedulerJob, lockSchedulerJob } from './worker-jobs.ts';
import { getOwnLease, type LeaseHolder, leaseOver } from './worker-lease.ts';

export interface Suspension extends LeaseHolder {
  /** The durable call that is shown to people. */
  call: string;
  /** All calls that an answer, an event or the end of children may end; by default only `call`. */
  calls?: readonly string[] | undefined;
  /** The end of the first wait; by default that of `call`. */
  until?: string | undefined;
  /** The job leaves its lane while it waits. */
  releaseLane: boolean;
  rules: BudgetRules;
}

/** `stopped`: a person or a budget has stopped the job instead. The lease has ended in both cases. */
export type Suspended = 'waiting' | 'stopped';

export async function suspendAttempt(db: Database, schema: Schema, suspension: Suspension): Promise<Suspended> {
  const lease = await getOwnLease(db, schema, suspension);
  // The answer to an earlier request was lost. A release has a status, and a suspension has none.
  if (lease.state === 'RELEASED' && lease.releaseStatus === null) return 'waiting';
  if (lease.state !== 'ACTIVE' || lease.overdue) throw leaseOver(lease);
  return retryConflicts(() => db.transaction((tx) => suspend(tx, schema, suspension)));
}

const releaseStatement = statement(`
  update ${tenant}.leases
     set state = 'RELEASED',
         released_at = now()
   where id = :leaseId
     and kind = 'remote'
     and state = 'ACTIVE'
     and expires_at > now()
  returning id`);

async function suspend(tx: Queryable, schema: Schema, suspension: Suspension): Promise<Suspended> {
  const { jobId, leaseId, workerId } = suspension;
  const { targetId } = await getSchedulerJob(tx, schema, jobId);
  // Every change of a lane locks in this order: target, lease, job.
  await lockTargets(tx, schema, targetId === null ? [] : [targetId]);
  const ended = await releaseStatement.query(tx, schema, { leaseId });
  if (ended.length === 0) throw leaseOver({ state: 'EXPIRED' });
  // A stop that was requested before decides the outcome, and a later one finds a WAITING job.
  const job = await lockSchedulerJob(tx, schema, jobId);
  const superseding = supersedingOutcome('suspend', job, suspension.rules);
  const outcome = superseding ?? (await toOutcome(tx, schema, suspension));
  const item = { jobId, leaseId, targetId: job.targetId, outcome };
  const finished = await finishAttemptsIn(tx, schema, [item], { actor: `worker:${workerId}` });
  if (!finished.accepted.has(jobId)) throw leaseOver({ state: 'EXPIRED' });
  return superseding === undefined ? 'waiting' : 'stopped';
}

const callStatement = statement(`
  select p.kind, p.waits_until as until, p.event_name as event, p.match, q.id as question,
         (
           select count(*)
             from ${tenant}.dependencies d
            where d.job_id = p.job_id
              and d.step = p.name
         )::int as jobs
    from ${tenant}.phases p
    left join ${tenant}.questions q on q.job_id = p.job_id and q.step = p.name and q.status = 'open'
   where p.job_id = :jobId
     and p.name = :call`);

interface CallRow {
  kind: string;
  until: string | null;
  event: string | null;
  match: Record<string, unknown> | null;
  question: string | null;
  jobs: number;
}

async function toOutcome(tx: Queryable, schema: Schema, suspension: Suspension): Promise<Outcome> {
  const { jobId, call, calls = [call], releaseLane } = suspension;
  const [row] = await callStatement.query<CallRow>(tx, schema, { jobId, call });
  if (row === undefined || !isWait(row.kind)) {
    throw invalidFields([{ field: 'call', message: 'must name a durable call that waits' }]);
  }
  const { kind, event, match, question, jobs } = row;
  const until = suspension.until ?? row.until ?? undefined;
  const waiting: Waiting = {
    kind,
    step: call,
    ...(row.until !== null && { until: row.until }),
    ...(event !== null && { event }),
    ...(match !== null && { match }),
    ...(question !== null && { question }),
    ...(kind === 'children' && { jobs }),
    ...(releaseLane && { lane: 'released' }),
  };
  const awaited = kind === 'sleep' ? undefined : { steps: calls, until };
  return { kind: releaseLane ? 'suspendAside' : 'suspend', waiting, leftMs: 0, awaited };
}

function isWait(kind: string): kind is WaitKind {
  return (waitKinds as readonly string[]).includes(kind);
}
