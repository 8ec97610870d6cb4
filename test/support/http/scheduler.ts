// The scheduler API over HTTP, with a new tenant for every test, and shortcuts for the steps of a job.
import { afterAll, beforeAll, beforeEach, expect } from 'vitest';
import { schedulerRoutes } from '../../../server/daemon/create-api.ts';
import { statsRoutes } from '../../../server/http/resources/stats.ts';
import { StepGroupCommit } from '../../../server/jobs/attempt/step-group-commit.ts';
import { CommitSignals } from '../../../server/jobs/commit-signals.ts';
import { QueueLimit } from '../../../server/jobs/enqueue/enqueue-limits.ts';
import { findExpiredLeases, recoverLease } from '../../../server/jobs/finish/recover.ts';
import { ClaimWaiters } from '../../../server/scheduler/claim-waiters.ts';
import type { TenantSettings } from '../../../server/tenants/tenant.ts';
import { updateTenantSettings } from '../../../server/tenants/tenant-store.ts';
import { HandlerRegistry } from '../../../server/worker/handlers/handler-registry.ts';
import { type TenantContext, useTenantPerTest } from '../postgres/database.ts';
import { type Answer, type TestApp, useApp } from './app.ts';

// biome-ignore lint/suspicious/noExplicitAny: tests read answers as a client without types would.
type Json = any;

export interface SchedulerContext {
  tenant: TenantContext;
  app: TestApp;
  waiters: ClaimWaiters;
  key: string;
  /** `POST /api/scheduler…`; the answer as it came. */
  post(path: string, body: unknown): Promise<Answer>;
  get(path: string): Promise<Answer>;
  submit(given?: object): Promise<Json>;
  claim(given?: object): Promise<Json>;
  /** Submit, claim and lease. */
  run(given?: object, ttlSec?: number): Promise<{ job: Json; lease: Json }>;
  capacity(settings: TenantSettings | Record<string, unknown>): Promise<void>;
  expire(leaseId: string): Promise<void>;
  /** Expires leases and claims, as the sweeper does. */
  sweep(): Promise<void>;
}

export const workerId = 'visuals-worker-01';

/** Tests that run at once need one tenant for all: pass `useTenant()`. */
export function useScheduler(tenant: TenantContext = useTenantPerTest()): SchedulerContext {
  const context = { tenant } as SchedulerContext;
  context.app = useApp(tenant, (deps) => {
    const queueLimit = new QueueLimit(deps.db);
    // No poll happens within a test, so every wake-up must work.
    context.waiters = new ClaimWaiters(3_600_000, deps.logger);
    return {
      routes: [
        ...schedulerRoutes({
          ...deps,
          waiters: context.waiters,
          signals: new CommitSignals(),
          queueLimit,
          stepCommits: new StepGroupCommit(deps.db),
          jobTypes: new HandlerRegistry([]),
        }),
        statsRoutes(),
      ],
    };
  });
  beforeAll(() => context.waiters.start());
  beforeEach(async () => {
    context.key = await context.app.keyFor(tenant.tenant.id);
    await context.app.deps.registry.refresh();
  });
  afterAll(() => context.waiters.stop());
  return Object.assign(context, actions(context));
}

function actions(context: SchedulerContext) {
  const send = (method: string, path: string, body?: unknown) =>
    context.app.request(method, `/api/scheduler${path}`, { key: context.key, body });
  const post = (path: string, body: unknown) => send('POST', path, body);
  const submit = async (given: object = {}) => {
    const answer = await post('/jobs/submit', { addon_id: 'visuals', job_type: 'load30', ...given });
    expect(answer.status, JSON.stringify(answer.body)).toBe(201);
    return answer.body.job;
  };
  const claim = async (given: object = {}) => {
    const answer = await post('/jobs/claim', { addon_id: 'visuals', worker_id: workerId, ...given });
    return answer.status === 204 ? undefined : (answer.body.job ?? answer.body);
  };
  return {
    post,
    get: (path: string) => send('GET', path),
    submit,
    claim,
    run: async (given: object = {}, ttlSec = 30) => {
      const queue = `q-${Math.random()}`;
      await submit({ addon_id: queue, ...given });
      const job = await claim({ addon_id: 'addon_id' in given ? given.addon_id : queue });
      const answer = await post('/lease/request', { job_id: job.job_id, ttl_sec: ttlSec });
      expect(answer.body.approved, JSON.stringify(answer.body)).toBe(true);
      return { job, lease: answer.body.lease };
    },
    capacity: async (settings: object) => {
      await updateTenantSettings(context.tenant.db, context.tenant.tenant.slug, settings);
    },
    expire: async (leaseId: string) => {
      const { db, schema } = context.tenant;
      await db.query(`update ${schema}.leases set expires_at = now() - interval '1 hour' where id = $1`, [leaseId]);
    },
    sweep: async () => {
      const { db, schema } = context.tenant;
      const first = '00000000-0000-0000-0000-000000000000';
      for (const lease of await findExpiredLeases(db, schema, 0, first, 100)) {
        await recoverLease(db, schema, lease, { actor: 'sweeper:test', graceSeconds: 0, tokenLimit: 0 });
      }
    },
  };
}
