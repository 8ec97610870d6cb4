// Pause and cancel. A job that nobody runs changes at once; a running one gets the flag, which its
// owner reads with the next heartbeat.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { insertEvents } from '../../events/log/record.ts';
import { problem } from '../../kernel/errors.ts';
import { endOpenPhases } from '../attempt/phases.ts';
import { holdsLane, type Job, type StopIntent, stoppedByUser } from '../model/job.ts';
import { allows } from '../model/states.ts';
import { changeJob } from './change.ts';
import { type ActionRequest, type ActionResult, actOnJob, eventData, lastEvent, refusal } from './job-action.ts';

export async function pauseJob(db: Database, schema: Schema, request: ActionRequest): Promise<ActionResult> {
  return actOnJob(db, schema, request, async (job) => {
    if (job.status === 'PAUSED') return { job, done: true };
    if (job.status === 'RUNNING') return requestStop(db, schema, job, 'pause', request);
    if (!allows('pause', job.status)) throw await refusal(db, schema, job, 'pause');
    return changed(
      db.transaction((tx) =>
        changeJob(tx, schema, job, {
          transition: 'pause',
          actor: request.actor,
          // Paused before its turn, it stands at the front of the line to hold the lane when its turn comes.
          set: `held_since = now(), lease_owner = null, error = $4::jsonb, hold = $5::jsonb,
            lane_rank = case when b.free or b.lane_head then null else 0 end`,
          values: [
            JSON.stringify({ code: 'PAUSED', message: stoppedByUser.pause }),
            JSON.stringify({ kind: 'user', reason: request.reason, author: request.author ?? request.actor }),
          ],
          data: eventData(request, { kind: 'user', message: stoppedByUser.pause }),
        }),
      ),
    );
  });
}

export async function cancelJob(db: Database, schema: Schema, request: ActionRequest): Promise<ActionResult> {
  return actOnJob(db, schema, request, async (job) => {
    if (job.status === 'CANCELED') return { job, done: true };
    if (job.status === 'RUNNING') return requestStop(db, schema, job, 'cancel', request);
    if (!allows('cancel', job.status)) throw await refusal(db, schema, job, 'cancel');
    return changed(cancelNow(db, schema, job, request));
  });
}

/** Cancels the job that holds its lane, and only that one, so that the lane goes on. */
export async function skipJob(db: Database, schema: Schema, request: ActionRequest): Promise<ActionResult> {
  return actOnJob(db, schema, request, async (job) => {
    if (job.status === 'CANCELED') return { job, done: true };
    if (!holdsLane(job)) throw await refusal(db, schema, job, 'skip');
    return changed(cancelNow(db, schema, job, request, `j.status in ('PAUSED', 'ERROR')`));
  });
}

function cancelNow(db: Database, schema: Schema, job: Job, request: ActionRequest, only?: string): Promise<boolean> {
  return db.transaction(async (tx) => {
    const requireStopped = await changeJob(tx, schema, job, {
      transition: 'cancel',
      actor: request.actor,
      set: `finished_at = now(), held_since = null, hold = null, lane_head = b.free, lane_rank = null, lease_owner = null`,
      data: eventData(request, only === undefined ? {} : { skipped: true }),
      ...(only !== undefined && { extraGuard: only }),
    });
    if (requireStopped) await endOpenPhases(tx, schema, job.id, 'cancelled');
    return requireStopped;
  });
}

/** Puts the intent on the flag of a running job. A cancel overrides a pause, never the other way. */
async function requestStop(
  db: Database,
  schema: Schema,
  job: Job,
  intent: StopIntent,
  request: ActionRequest,
): Promise<ActionResult | undefined> {
  if (job.cancelRequested && job.cancelIntent === intent) return { job, done: false };
  if (job.cancelIntent === 'cancel') {
    const event = await lastEvent(db, schema, job.id, ['job.cancel_requested']);
    throw problem('CONFLICT', `A cancel is already on its way, asked by ${event?.data?.author ?? event?.actor}.`, {
      job_status: job.status,
      last_event: event && { type: event.type, actor: event.actor, at: event.at, author: event.data?.author },
    });
  }
  const rows = await db.query<{ cancel_detail: Job['cancelDetail'] }>(
    `with given as (select $3::jsonb || jsonb_build_object('actor', $4::text, 'at', now()) as detail),
     asked as (
       update ${schema}.jobs j set cancel_requested = true, cancel_intent = $2, cancel_detail = g.detail, updated_at = now()
         from given g
        where j.id = $1 and j.status = 'RUNNING' and j.lease_id = $5 and (j.cancel_intent is null or j.cancel_intent = 'pause')
       returning j.id, j.target_id, j.attempt, j.lease_id, j.cancel_detail),
     told as (${insertEvents(schema, {
       source: 'asked',
       type: `'job.${intent}_requested'`,
       actor: '$4',
       from: `'RUNNING'`,
       to: `'RUNNING'`,
       data: '$3::jsonb',
     })})
     select cancel_detail from asked`,
    [job.id, intent, JSON.stringify(eventData(request)), request.actor, job.leaseId],
  );
  const row = rows[0];
  if (row === undefined) return undefined;
  return { job: { ...job, cancelRequested: true, cancelIntent: intent, cancelDetail: row.cancel_detail }, done: false };
}

async function changed(change: Promise<boolean>): Promise<'changed' | undefined> {
  return (await change) ? 'changed' : undefined;
}
