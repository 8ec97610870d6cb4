// A tenant with a sealed log, to be attacked: what `verify` finds afterwards, with and without an anchor.
import { randomBytes } from 'node:crypto';
import { expect } from 'vitest';
import type { Database } from '../../server/database/database.ts';
import { pauseJob } from '../../server/jobs/actions/pause-and-cancel.ts';
import { resolveJob } from '../../server/jobs/actions/resume.ts';
import type { Job } from '../../server/jobs/model/job.ts';
import { type Verification, verifyTenant } from '../../server/verify/verify-tenant.ts';
import { addJob, claim, finish } from './jobs.ts';
import { addTenant, type TenantContext } from './postgres/database.ts';
import { sealAll } from './seals.ts';

type Where = Pick<TenantContext, 'db' | 'schema'>;
type Anchor = { number: string; hash: string };

export interface Scene extends Where {
  done: Job;
  waiting: Job;
  resolved: Job;
  anchor: Anchor;
  sql(text: string, values?: unknown[]): Promise<Record<string, string>[]>;
  verify(anchor?: Anchor): Promise<Verification>;
}

/** Three seals: a job that ended, one that waits and one that a person resolved. */
export async function sealedScene(db: Database): Promise<Scene> {
  const { schema } = await addTenant(db, `t${randomBytes(4).toString('hex')}`);
  const where = { db, schema };
  const verify = (anchor?: Anchor) => verifyTenant(db, schema, anchor && { anchor });
  const given = { payload: { amount: 5 }, author: 'ann', targetId: 'robot' };
  const done = await addJob(where, given);
  await finish(where, (await claim(where)).jobs[0] as Job, { kind: 'complete', result: { paid: 5 } });
  await sealAll(where);
  const resolved = await addJob(where, given);
  await pauseJob(db, schema, { jobId: resolved.id, actor: 'user:ann' });
  await resolveJob(db, schema, { jobId: resolved.id, actor: 'user:ann', result: { paid: 1 } });
  await sealAll(where);
  const waiting = await addJob(where, given);
  await sealAll(where);
  const before = await verify();
  expect(before).toMatchObject({
    violations: [],
    seals: { seals: 3, unsealedEvents: 0, comparedJobs: 5, formerSeals: 0 },
  });
  return {
    ...where,
    done,
    waiting,
    resolved,
    anchor: before.seals.end as Anchor,
    sql: (text, values) => db.query(text, values),
    verify,
  };
}

export const kinds = (found: Verification) => [...new Set(found.violations.map((violation) => violation.kind))].sort();
export const named = (found: Verification) => found.violations.map((f) => [f.kind, f.event ?? f.seal ?? f.jobId]);
