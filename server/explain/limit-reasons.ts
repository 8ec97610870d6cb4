// Reasons of limits: which of them has no room for the job, and when it will have.
import type { Queryable } from '../database/database.ts';
import { type LimitWait, readLimitWaits } from '../jobs/limits/read-limits.ts';
import { type Job, priorityRank } from '../jobs/model/job.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { Reason } from './reason.ts';

export async function limitReasons(db: Queryable, job: Job, { schema, limits }: Tenant): Promise<Reason[]> {
  if (!job.gated || job.status !== 'QUEUED' || job.limitKeys === null) return [];
  const keyed = { ...job, limitKeys: job.limitKeys };
  const waits = await readLimitWaits(db, schema, limits, keyed, priorityRank(job.priority));
  return waits.filter((wait) => wait.isShort).map(limited);
}

function limited({ limit, value, running, ahead, at }: LimitWait): Reason {
  const { name, key, rate, per = 'second', concurrency } = limit;
  const which = key === undefined ? `Limit ${name}` : `Limit ${name} of ${key} ${JSON.stringify(value)}`;
  const before = ahead === 0 ? '' : `, and ${ahead} ${ahead === 1 ? 'job is' : 'jobs are'} ahead`;
  const tokens = rate === undefined ? '' : ` It starts ${rate} per ${per}.`;
  const slots = concurrency === undefined ? '' : ` ${running} of ${concurrency} are running.`;
  return {
    code: 'LIMITED',
    detail: `${which} has no room${before}.${tokens}${slots}`,
    release: {
      detail:
        at === null ? 'A running job ends, or the limit is raised.' : `A token comes at ${at}, or the limit is raised.`,
      at,
      actions: [{ action: 'raise limit', method: 'PUT', path: `/api/limits/${encodeURIComponent(name)}` }],
    },
  };
}
