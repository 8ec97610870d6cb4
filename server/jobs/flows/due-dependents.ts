// Handles due jobs that ran after others or waited for their turn: queues them, holds them for a person, or cancels
// them, according to their edges.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { cancelIdle } from '../actions/pause-and-cancel.ts';
import { distinctTargets, lockTargets, numberJobs } from '../lanes/lane.ts';
import type { Job } from '../model/job.ts';
import { jobError } from '../model/job-errors.ts';
import { never, type WaitKind } from '../model/waiting.ts';
import { applyTransition } from '../transition.ts';
import { isUnfinished, noStep } from './dependencies.ts';

type Dependent = Pick<Job, 'id' | 'targetId'>;

export function isDependent(kind: WaitKind | null): boolean {
  return kind === 'after' || kind === 'turn';
}

interface Verdict extends Dependent {
  verdict: 'ready' | 'wait' | 'hold' | 'cancel';
  /** The job whose end decided it. */
  afterId: string | null;
}

const verdictStatement = statement(`
  select j.id, j.target_id as "targetId", d.after_id as "afterId",
         case when d.on_failure in ('hold', 'cancel') then d.on_failure
              when exists (
                select 1
                  from ${tenant}.dependencies u
                 where u.job_id = j.id
                   and u.step = '${noStep}'
                   and ${isUnfinished('u')}
              ) then 'wait'
              else 'ready' end as verdict
    from ${tenant}.jobs j
    left join lateral (
      select f.after_id, f.on_failure
        from ${tenant}.dependencies f
       where f.job_id = j.id
         and f.step = '${noStep}'
         and f.state in ('failed', 'canceled')
         and f.on_failure in ('hold', 'cancel')
       order by f.on_failure, f.position
       limit 1
    ) d on true
   where j.id = any(:ids::uuid[])`);

/** Runs in the caller's transaction. Returns the number of changed jobs. */
export async function queueDependents(
  tx: Queryable,
  schema: Schema,
  due: readonly Dependent[],
  actor: string,
): Promise<number> {
  // Locks all lanes at once, because each of the changes below may need several.
  await lockTargets(tx, schema, distinctTargets(due));
  const verdicts = await verdictStatement.query<Verdict>(tx, schema, { ids: due.map(({ id }) => id) });
  const those = (wanted: Verdict['verdict']) => verdicts.filter(({ verdict }) => verdict === wanted);
  const ready = await queueReady(tx, schema, those('ready'), actor);
  const canceled = await cancelDependents(tx, schema, those('cancel'), actor);
  let held = 0;
  for (const job of those('hold')) held += await holdDependent(tx, schema, job, actor);
  const early = those('wait').map(({ id }) => id);
  if (early.length > 0) await waitStatement.query(tx, schema, { ids: early });
  return ready + canceled + held;
}

const isDue = 'j.run_at <= now()';
const clockRunsOn = `held_since = null,
              waiting = null,
              expires_at = b.expires_later`;

async function queueReady(tx: Queryable, schema: Schema, jobs: readonly Dependent[], actor: string): Promise<number> {
  if (jobs.length === 0) return 0;
  const ids = await applyTransition(tx, schema, {
    name: 'becomeReady',
    jobs,
    extraGuard: isDue,
    set: clockRunsOn,
    actor,
    laneNumbers: await numberJobs(tx, schema, jobs),
  });
  return ids.length;
}

async function cancelDependents(
  tx: Queryable,
  schema: Schema,
  jobs: readonly Verdict[],
  actor: string,
): Promise<number> {
  const ids = await cancelIdle(tx, schema, jobs, {
    extraGuard: `j.status = 'WAITING' and ${isDue}`,
    error: jobError('DEPENDENCY_FAILED', 'A job that this one runs after did not succeed.'),
    actor,
    data: { reason: 'a job that it runs after did not succeed' },
  });
  return ids.length;
}

/** Changes one job at a time, because each event names the job that was canceled. */
async function holdDependent(tx: Queryable, schema: Schema, job: Verdict, actor: string): Promise<number> {
  const reason = `job ${job.afterId}, which it runs after, was canceled`;
  const ids = await applyTransition(tx, schema, {
    name: 'pause',
    jobs: [job],
    extraGuard: `j.status = 'WAITING' and ${isDue}`,
    set: `held_since = now(),
              expires_at = b.expires_later,
              waiting = null,
              error = :error::jsonb,
              hold = :hold::jsonb`,
    values: {
      error: JSON.stringify(
        jobError('DEPENDENCY_FAILED', `Job ${job.afterId}, which this one runs after, was canceled.`),
      ),
      hold: JSON.stringify({ kind: 'dependency', reason }),
    },
    actor,
    data: { kind: 'dependency', reason, after: job.afterId },
  });
  return ids.length;
}

const waitStatement = statement(`
  update ${tenant}.jobs j
     set run_at = timestamptz '${never}'
   where j.id = any(:ids::uuid[])
     and j.status = 'WAITING'`);
