// The shared safety poll: finds tenants with work that no wake-up announced, and the next due times.
import type { Queryable } from '../database/database.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import { type Questions, survey } from './survey.ts';

const questions: Questions = {
  claimable: (s) => `exists (select 1 from ${s}.jobs where status = 'QUEUED' and lane_head and not remote)`,
  due_ms: (s) =>
    `(select extract(epoch from (run_at - now()))::float8 * 1000 from ${s}.jobs where status = 'PENDING' order by run_at limit 1)`,
  fires_ms: (s) =>
    `(select extract(epoch from (next_at - now()))::float8 * 1000 from ${s}.schedules where paused_at is null and next_at is not null order by next_at limit 1)`,
};

export interface PollTargets {
  wake(slug: string): void;
  dueIn(slug: string, ms: number): void;
}

interface Ticker {
  dueIn(slug: string, ms: number): void;
}

export async function pollOnce(
  db: Queryable,
  registry: TenantRegistry,
  workers: PollTargets,
  schedules?: Ticker,
): Promise<void> {
  for (const { tenant, answers } of await survey(db, registry.active(), questions, [])) {
    if (answers.claimable === true) workers.wake(tenant.slug);
    if (typeof answers.due_ms === 'number') workers.dueIn(tenant.slug, Math.max(0, answers.due_ms));
    if (typeof answers.fires_ms === 'number') schedules?.dueIn(tenant.slug, Math.max(0, answers.fires_ms));
  }
}
