// How a target and its lane look over HTTP.
import { z } from 'zod';
import { holdOfLaneJob, isHold, type Lane, type LaneJob, maxCounted } from '../../jobs/lanes/read-lane.ts';
import type { Target } from '../../jobs/lanes/target.ts';
import { describeHold, type Hold } from '../../jobs/model/hold.ts';
import { priorities, withoutTrace } from '../../jobs/model/job.ts';
import { statuses } from '../../jobs/model/states.ts';
import { jobErrorSchema, jobHoldSchema } from './job-schema.ts';

const time = z.iso.datetime({ offset: true });

export const laneJobSchema = z
  .strictObject({
    id: z.uuid(),
    type: z.string(),
    status: z.enum(statuses),
    priority: z.enum(priorities),
    created_at: time,
    run_at: time,
    held_since: time.nullable(),
    lease_owner: z.string().nullable(),
    error: jobErrorSchema.nullable(),
    hold: jobHoldSchema.nullable(),
  })
  .meta({ id: 'LaneJob' });

const holdSchema = z
  .strictObject({
    by: z.enum(['job', 'pause']),
    detail: z.string(),
    since: time.nullable(),
    job_id: z.uuid().nullable(),
    kind: jobHoldSchema.shape.kind,
    reason: z.string().nullable(),
    author: z.string().nullable(),
  })
  .meta({ id: 'Hold' });

export const targetSchema = z
  .strictObject({
    id: z.string(),
    labels: z.record(z.string(), z.string()),
    paused: z.boolean(),
    paused_at: time.nullable(),
    paused_by: z.string().nullable(),
    pause_reason: z.string().nullable(),
    paused_until: time.nullable(),
    created_at: time,
    head: laneJobSchema.nullable().describe('The job that runs, may run next, or holds the lane.'),
    hold: holdSchema.nullable().describe('Why nothing starts here, if so.'),
  })
  .meta({ id: 'Target' });

export const targetLaneSchema = targetSchema
  .extend({
    waiting: z.int().describe(`Jobs in line behind the head; ${maxCounted} when there are at least as many.`),
    waiting_exact: z.boolean(),
    next: z.array(laneJobSchema).describe('The next in line, in the order in which they will run.'),
  })
  .meta({ id: 'TargetLane' });

export function targetToApi(target: Target, head: LaneJob | undefined): z.input<typeof targetSchema> {
  return {
    id: target.id,
    labels: target.labels,
    paused: target.paused_at !== null,
    paused_at: target.paused_at,
    paused_by: target.paused_by,
    pause_reason: target.pause_reason,
    paused_until: target.paused_until,
    created_at: target.created_at,
    head: head === undefined ? null : laneJobToApi(head),
    hold: holdOf(target, head),
  };
}

export function targetLaneToApi(target: Target, lane: Lane): z.input<typeof targetLaneSchema> {
  return {
    ...targetToApi(target, lane.head),
    waiting: Math.min(lane.waiting, maxCounted),
    waiting_exact: lane.waiting <= maxCounted,
    next: lane.next.map(laneJobToApi),
  };
}

export function laneJobToApi(job: LaneJob): z.input<typeof laneJobSchema> {
  return {
    id: job.id,
    type: job.type,
    status: job.status,
    priority: priorities[job.priority] ?? 'NORMAL',
    created_at: job.created_at,
    run_at: job.run_at,
    held_since: job.held_since,
    lease_owner: job.lease_owner,
    error: job.error && withoutTrace(job.error),
    hold: holdOfLaneJob(job) ?? null,
  };
}

function holdOf(target: Target, head: LaneJob | undefined): z.input<typeof holdSchema> | null {
  const hold = head && holdOfLaneJob(head);
  if (head !== undefined && hold !== undefined && (isHold(head) || hold.kind === 'handler')) return jobHold(head, hold);
  if (target.paused_at === null) return null;
  const why = target.pause_reason === null ? '' : `: ${target.pause_reason}`;
  return {
    by: 'pause',
    detail: `Paused by ${target.paused_by}${why}`,
    since: target.paused_at,
    job_id: null,
    kind: 'user',
    reason: target.pause_reason,
    author: target.paused_by,
  };
}

function jobHold(head: LaneJob, hold: Hold): z.input<typeof holdSchema> {
  const { kind, reason, author, since } = hold;
  const detail = `Job ${head.id} is ${head.status}: ${describeHold(hold)}`;
  return { by: 'job', detail, since, job_id: head.id, kind, reason, author };
}
