// The real engine as the commands of a property test drive it: what a person is told, what the tables
// say, and how time is made to pass.
import { expect } from 'vitest';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { claimJobs } from '../../../server/jobs/claim/claim.ts';
import { queueDueJobs } from '../../../server/jobs/finish/due-jobs.ts';
import { finishAttempts } from '../../../server/jobs/finish/finish.ts';
import { findExpiredLeases, recoverLease } from '../../../server/jobs/finish/recover.ts';
import { resumeTarget } from '../../../server/jobs/lanes/target.ts';
import { Problem } from '../../../server/kernel/errors.ts';
import type { TenantContext } from '../postgres/database.ts';
import { compareCalls } from './compare-calls.ts';
import type { ActionOutcome, EngineModel } from './engine-model.ts';

const firstId = '00000000-0000-0000-0000-000000000000';
const sweep = { actor: 'sweeper:test', graceSeconds: 0, tokenLimit: 0 };

/** The real engine. `racing`: others act at the same time, so that the model has no say. */
export class EngineDriver {
  readonly context: TenantContext;
  readonly racing: boolean;

  constructor(context: TenantContext, { racing = false } = {}) {
    this.context = context;
    this.racing = racing;
  }

  /** Says what a person was told; anything but a refusal is a failure of the test. */
  async reported(act: (by: { actor: string; author: string }) => Promise<{ done: boolean }>): Promise<ActionOutcome> {
    try {
      return (await act({ actor: 'user:ann', author: 'ann' })).done ? 'done' : 'asked';
    } catch (error) {
      if (error instanceof Problem && error.httpStatus < 500) return 'refused';
      throw error;
    }
  }

  async compare(model: EngineModel): Promise<void> {
    if (this.racing) return;
    const { db, schema } = this.context;
    const rows = await db.query(
      `select id, status, lane_head as head, lane_rank as rank, attempt, attempt_floor as floor, cancel_intent as intent,
              case when status = 'RUNNING' then lease_id end as lease from ${schema}.jobs order by id`,
    );
    const expected = model.jobs.map(({ id, status, head, rank, attempt, floor, intent, lease }) => {
      return { id, status, head, rank, attempt, floor, intent, lease: status === 'RUNNING' ? lease : null };
    });
    expect(rows).toEqual(expected.sort((a, b) => (a.id < b.id ? -1 : 1)));
    await compareCalls(this.context, model);
  }

  async statuses(): Promise<Record<string, number>> {
    const { db, schema } = this.context;
    const rows = await db.query<{ status: string; n: number }>(
      `select status, count(*)::int as n from ${schema}.jobs group by status`,
    );
    return Object.fromEntries(rows.map((row) => [row.status, row.n]));
  }

  async expireLease(leaseId: string): Promise<void> {
    const { db, schema } = this.context;
    await db.query(`update ${schema}.leases set expires_at = now() - interval '1 s' where id = $1`, [leaseId]);
  }

  async sweepLeases(): Promise<void> {
    const { db, schema } = this.context;
    for (const lease of await findExpiredLeases(db, schema, 0, firstId, 100))
      await recoverLease(db, schema, lease, sweep);
  }

  async makeDue(jobId?: string): Promise<void> {
    const { db, schema } = this.context;
    await db.query(
      `update ${schema}.jobs set run_at = now() - interval '1 s' where status in ('PENDING', 'WAITING') and ($1::uuid is null or id = $1)`,
      [jobId ?? null],
    );
    await queueDueJobs(db, schema, 'worker:test');
  }

  async expireQuestions(): Promise<void> {
    const { db, schema } = this.context;
    const past = `now() - interval '1 s'`;
    await db.query(`update ${schema}.questions set expires_at = ${past} where status = 'open'`);
    await db.query(
      `update ${schema}.phases set waits_until = ${past} where kind = 'question' and status <> 'completed'`,
    );
  }

  /** Takes everything out of the way; then claims and finishes until nothing is left. */
  async drain(): Promise<void> {
    const { db, schema } = this.context;
    const by = { actor: 'user:ann' };
    await db.query(`update ${schema}.leases set expires_at = now() - interval '1 s'`);
    await this.sweepLeases();
    for (const { id } of await db.query<{ id: string }>(
      `select id from ${schema}.targets where paused_at is not null`,
    )) {
      await resumeTarget(db, schema, { targetId: id, ...by });
    }
    for (;;) {
      await this.expireQuestions();
      await this.makeDue();
      const held = await db.query<{ id: string }>(`select id from ${schema}.jobs where status in ('PAUSED', 'ERROR')`);
      for (const { id } of held) await resumeJob(db, schema, { jobId: id, ...by });
      const { jobs, leaseId } = await claimJobs(db, schema, { owner: 'drain', limit: 1000, leaseSeconds: 60 });
      if (jobs.length === 0) break;
      const items = jobs.map(({ id, targetId }) => {
        return { jobId: id, leaseId, targetId, outcome: { kind: 'complete' as const, result: null } };
      });
      const { accepted } = await finishAttempts(db, schema, items, { actor: 'worker:drain', endedLeases: [leaseId] });
      expect(accepted.size).toBe(jobs.length);
    }
    const left = Object.keys(await this.statuses()).filter((s) => !['SUCCESS', 'PARTIAL', 'CANCELED'].includes(s));
    expect(left).toEqual([]);
  }
}
