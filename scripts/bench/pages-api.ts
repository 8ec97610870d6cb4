// The HTTP API over a database, without workers: what the pages of the dashboard ask.
import { Registry } from 'prom-client';
import { controlRoutes, schedulerRoutes } from '../../server/daemon/create-api.ts';
import type { Database } from '../../server/database/database.ts';
import { createApp } from '../../server/http/app.ts';
import { attentionRoutes } from '../../server/http/resources/attention.ts';
import { eventRoutes } from '../../server/http/resources/events.ts';
import { adminWorkerRoutes } from '../../server/http/resources/health.ts';
import { jobLogRoutes } from '../../server/http/resources/jobs/job-logs.ts';
import { laneRoutes } from '../../server/http/resources/jobs/lanes.ts';
import { scheduleRoutes } from '../../server/http/resources/schedules.ts';
import { statsRoutes } from '../../server/http/resources/stats.ts';
import { webhookRoutes } from '../../server/http/resources/webhooks.ts';
import { HttpServer } from '../../server/http/server.ts';
import { StepGroupCommit } from '../../server/jobs/attempt/step-group-commit.ts';
import { CommitSignals } from '../../server/jobs/commit-signals.ts';
import { enqueue } from '../../server/jobs/enqueue/enqueue.ts';
import { QueueLimit } from '../../server/jobs/enqueue/enqueue-limits.ts';
import { loadConfig } from '../../server/kernel/config.ts';
import { createLogger } from '../../server/kernel/logger.ts';
import { ClaimWaiters } from '../../server/scheduler/claim-waiters.ts';
import { KeyVerifier } from '../../server/tenants/api-keys/verifier.ts';
import { TenantRegistry } from '../../server/tenants/registry.ts';
import { HandlerRegistry } from '../../server/worker/handlers/handler-registry.ts';

export interface BenchApi {
  adminKey: string;
  /** Milliseconds until the whole answer is there. */
  get(path: string, key: string): Promise<number>;
  stop(): Promise<void>;
}

export async function startApi(db: Database): Promise<BenchApi> {
  const adminKey = 'scale-9f2c7b1d4e6a8053-operator-key-71b3';
  const config = loadConfig({ ADMIN_API_KEY: adminKey, PORT: '0' });
  const logger = createLogger('silent');
  const registry = new TenantRegistry(db, logger);
  const keys = new KeyVerifier(db, config, logger);
  const jobTypes = new HandlerRegistry([]);
  const queueLimit = new QueueLimit(db);
  const signals = new CommitSignals();
  const routes = [
    eventRoutes(),
    ...controlRoutes({
      config,
      jobTypes,
      queueLimit,
      signals,
      enqueuer: { enqueue: ({ schema }, jobs, actor) => enqueue(db, schema, jobs, actor) },
    }),
    ...schedulerRoutes({
      config,
      logger,
      queueLimit,
      signals,
      stepCommits: new StepGroupCommit(db),
      jobTypes,
      waiters: new ClaimWaiters(1000, logger),
    }),
    jobLogRoutes(),
    attentionRoutes(),
    laneRoutes(),
    scheduleRoutes({ db, jobTypes, queueLimit, signals }),
    statsRoutes(),
    webhookRoutes({ db, registry, wake: () => {} }),
    adminWorkerRoutes({ db }),
  ];
  const readiness = () => ({ migrated: true, draining: false });
  const deps = { config, db, logger, registry, keys, metricsRegistry: new Registry(), readiness, routes };
  await registry.start();
  await keys.start();
  const server = new HttpServer(() => createApp(deps), { host: '127.0.0.1', port: 0 }, logger);
  await server.start();
  return {
    adminKey,
    async get(path, key) {
      const startedAt = performance.now();
      const response = await fetch(server.url + path, { headers: { authorization: `Bearer ${key}` } });
      const text = await response.text();
      if (!response.ok) throw new Error(`${path}: ${response.status} ${text.slice(0, 300)}`);
      return performance.now() - startedAt;
    },
    async stop() {
      await server.stop();
      await keys.stop();
      await registry.stop();
    },
  };
}
