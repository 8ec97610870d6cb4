// A tenant's loop without a daemon, whose claims a test delays or cuts.
import { onTestFinished } from 'vitest';
import type { Database } from '../../../server/database/database.ts';
import { StepGroupCommit } from '../../../server/jobs/attempt/step-group-commit.ts';
import { CommitSignals } from '../../../server/jobs/commit-signals.ts';
import { QueueLimit } from '../../../server/jobs/enqueue/enqueue-limits.ts';
import { loadConfig } from '../../../server/kernel/config.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { Metrics } from '../../../server/stats/metrics.ts';
import { TenantRegistry } from '../../../server/tenants/registry.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { HandlerRegistry } from '../../../server/worker/handlers/handler-registry.ts';
import { Heartbeat } from '../../../server/worker/heartbeat/heartbeat.ts';
import type { SendClaim } from '../../../server/worker/loop/claimer.ts';
import { Slots } from '../../../server/worker/loop/slots.ts';
import { TenantLoop } from '../../../server/worker/loop/tenant-loop.ts';
import type { TenantContext } from '../postgres/database.ts';

export interface LoopOptions {
  db?: Database;
  leaseSeconds: number;
  heartbeatSeconds: number;
  sendClaim: SendClaim;
}

/** Runs jobs of the type demo.echo; `ran` has the ids of those that were started. */
export function startLoop(context: TenantContext, options: LoopOptions): { loop: TenantLoop; ran: string[] } {
  const { db = context.db, leaseSeconds, heartbeatSeconds, sendClaim } = options;
  const logger = createLogger('silent');
  const heartbeat = new Heartbeat({ url: context.url, heartbeatSeconds, leaseSeconds, stallSeconds: 60, logger });
  const ran: string[] = [];
  const echo = defineJob({
    type: 'demo.echo',
    async run({ job }) {
      ran.push(job.id);
      return null;
    },
  });
  const config = {
    ...loadConfig({ CANCEL_GRACE_SECONDS: '0.1', TENANT_CONCURRENCY: '5' }),
    workerId: 'w1',
    leaseSeconds,
  };
  const metrics = new Metrics({ perTenant: false, version: 'test', pools: () => ({ main: db.pool }) });
  const loop = new TenantLoop(context.tenant, {
    config,
    db,
    registry: new TenantRegistry(db, logger),
    logger,
    metrics,
    handlers: new HandlerRegistry([echo]),
    heartbeat,
    queueLimit: new QueueLimit(db),
    stepCommits: new StepGroupCommit(db),
    signals: new CommitSignals(),
    slots: new Slots(5),
    peers: { count: 0 },
    sendClaim,
  });
  onTestFinished(async () => {
    await loop.stopClaiming();
    await loop.flushed();
    await heartbeat.stop();
  });
  return { loop, ran };
}
