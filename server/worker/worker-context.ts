// The dependencies that all workers of a daemon share. The composition root creates them once and passes them down.
import type { Database } from '../database/database.ts';
import type { StepGroupCommit } from '../jobs/attempt/step-group-commit.ts';
import type { CommitSignals } from '../jobs/commit-signals.ts';
import type { QueueLimit } from '../jobs/enqueue/enqueue-limits.ts';
import type { Config } from '../kernel/config.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Metrics } from '../stats/metrics.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { HandlerRegistry } from './handlers/handler-registry.ts';
import type { Heartbeat } from './heartbeat/heartbeat.ts';
import type { SendClaim } from './loop/claimer.ts';
import type { EventLoopMonitor } from './loop/event-loop-monitor.ts';
import type { Slots } from './loop/slots.ts';

export interface WorkerContext {
  config: Config;
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  metrics: Metrics;
  handlers: HandlerRegistry;
  heartbeat: Heartbeat;
  queueLimit: QueueLimit;
  stepCommits: StepGroupCommit;
  signals: CommitSignals;
}

/** Adds what the loops share: the slots they compete for, and the monitor of the event loop. */
export interface LoopContext extends WorkerContext {
  slots: Slots;
  /** The other daemons that could run the same jobs. */
  peers: { count: number };
  monitor?: EventLoopMonitor;
  sendClaim?: SendClaim;
}
