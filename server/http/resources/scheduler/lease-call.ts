// The common parts of the durable calls of remote workers: a route below the lease, the holder that it names, writes
// that are refused once the lease is lost, and the end of an attempt that has to wait.
import type { z } from 'zod';
import type { Database } from '../../../database/database.ts';
import type { Schema } from '../../../database/identifiers.ts';
import { budgetRules } from '../../../jobs/model/job-budget.ts';
import { isUuid } from '../../../kernel/fields.ts';
import { type Suspended, suspendAttempt } from '../../../scheduler/suspend-attempt.ts';
import { writeAsHolder } from '../../../scheduler/worker-calls.ts';
import { type LeaseHolder, noSuchLease } from '../../../scheduler/worker-lease.ts';
import type { Tenant } from '../../../tenants/tenant.ts';
import type { RouteDefinition, RouteGroup } from '../../route.ts';
import type { SchedulerDependencies } from './scheduler-jobs.ts';
import { idParams } from './scheduler-schemas.ts';

const leaseParams = idParams('lease_id');
const leaseProblems = ['NOT_FOUND', 'LEASE_LOST'] as const;
/** The size of the fields around the results or payloads of a body. */
export const envelopeBytes = 65_536;

type HolderBody = z.ZodType<{ job_id: string; worker_id: string }>;

export interface LeaseCall<B> {
  body: B;
  tenant: Tenant;
  schema: Schema;
  db: Database;
  holder: LeaseHolder;
  /** The actor of events. */
  actor: string;
  /** Runs a fenced write of the holder. Throws if the write returns undefined because the lease is lost. */
  write<T>(work: () => Promise<T | undefined>): Promise<T>;
}

type LeaseRoute<B extends HolderBody, A extends z.ZodType> = Pick<
  RouteDefinition,
  'summary' | 'description' | 'bodyLimitBytes' | 'allowSuspended' | 'problems'
> & {
  /** The path below the lease, such as `steps`. */
  name: string;
  body: B;
  answer: A;
  handle(call: LeaseCall<z.output<B>>): Promise<z.input<A>>;
};

/** Declares the route of one call. */
export function leaseCall<B extends HolderBody, A extends z.ZodType>(group: RouteGroup, route: LeaseRoute<B, A>): void {
  const { name, answer, problems = [], handle, ...rest } = route;
  group.route({
    ...rest,
    method: 'post',
    path: `/api/scheduler/lease/{lease_id}/${name}`,
    access: 'worker',
    params: leaseParams,
    answers: { 200: answer },
    problems: [...leaseProblems, ...problems],
    handle: (context) => {
      const { db, tenant } = context;
      const { schema } = tenant;
      const body = context.body as z.output<B>;
      const holder = holderOf(context.params.lease_id, body);
      const write = <T>(work: () => Promise<T | undefined>) => writeAsHolder(db, schema, holder, work);
      return handle({ body, tenant, schema, db, holder, actor: `worker:${holder.workerId}`, write });
    },
  });
}

function holderOf(leaseId: string, { job_id: jobId, worker_id: workerId }: z.output<HolderBody>): LeaseHolder {
  if (!isUuid(leaseId)) throw noSuchLease();
  return { leaseId, jobId, workerId };
}

/** The waits that end the attempt; see suspendAttempt. */
interface Wait {
  call: string;
  calls?: readonly string[] | undefined;
  until?: string | undefined;
}

/** Ends the attempt: the job waits, and the next job of its lane may be claimable. */
export async function suspend(
  deps: SchedulerDependencies,
  { db, schema, tenant, holder, body }: LeaseCall<{ release_lane: boolean }>,
  wait: Wait,
): Promise<Suspended> {
  const rules = rulesOf(deps, tenant);
  const status = await suspendAttempt(db, schema, { ...holder, ...wait, releaseLane: body.release_lane, rules });
  attemptEnded(deps, tenant);
  return status;
}

/** The answer to a call that has to wait. Its attempt has ended, unless the worker ends it later. */
export async function waitOrSuspend(
  deps: SchedulerDependencies,
  call: LeaseCall<{ name: string; suspend: boolean; release_lane: boolean }>,
): Promise<Suspended | 'open'> {
  return call.body.suspend ? suspend(deps, call, { call: call.body.name }) : 'open';
}

export function rulesOf({ config }: SchedulerDependencies, tenant: Tenant) {
  return budgetRules(tenant, config.tokenLimit);
}

/** The next job of the lane may be claimable, or capacity is free again. */
export function attemptEnded({ waiters, signals }: SchedulerDependencies, tenant: Tenant): void {
  waiters.wake(tenant.schema);
  signals.jobsWritten(tenant);
}
