// Runs a definition on a real job the way the executor does, and remembers why it was told to stop.

import { demoHandlers } from '../../../server/demo/handlers.ts';
import type { StopReason } from '../../../server/durable/stop-reason.ts';
import { StepGroupCommit } from '../../../server/jobs/attempt/step-group-commit.ts';
import type { NewJob } from '../../../server/jobs/enqueue/enqueue.ts';
import { QueueLimit } from '../../../server/jobs/enqueue/enqueue-limits.ts';
import type { Job } from '../../../server/jobs/model/job.ts';
import { type Config, loadConfig } from '../../../server/kernel/config.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import type { HandlerEnd, HandlerRun } from '../../../server/worker/attempt/handler-run.ts';
import { runHandler } from '../../../server/worker/attempt/run-handler.ts';
import type { JobDefinition } from '../../../server/worker/handlers/define-job.ts';
import { HandlerRegistry } from '../../../server/worker/handlers/handler-registry.ts';
import { addJob, claim } from '../jobs.ts';
import type { TenantContext } from '../postgres/database.ts';

export interface Ran {
  job: Job;
  end: HandlerEnd;
  stops: StopReason[];
}

export interface Running {
  job: Job;
  stop(reason: StopReason): void;
  kill(): void;
  /** The lease runs out and nothing notices it, as while a process is suspended. */
  expire(): void;
  onStop(listener: (reason: StopReason) => void): void;
  end: Promise<Ran>;
}

/** Enqueues a job of the definition's type, claims it, and starts its handler. */
export async function startJob(
  context: TenantContext,
  definition: JobDefinition,
  given: Partial<NewJob> = {},
  config: Partial<Config> = {},
): Promise<Running> {
  const added = await addJob(context, {
    ...new HandlerRegistry([definition]).defaults(definition.type),
    type: definition.type,
    ...given,
  });
  return startClaimed(context, definition, added.id, config);
}

export async function startClaimed(
  context: TenantContext,
  definition: JobDefinition,
  jobId: string,
  config: Partial<Config> = {},
): Promise<Running> {
  const job = (await claim(context)).jobs.find((j) => j.id === jobId);
  if (job === undefined) throw new Error(`job ${jobId} could not be claimed`);
  const controller = new AbortController();
  const kill = new AbortController();
  const stops: StopReason[] = [];
  const listeners: ((reason: StopReason) => void)[] = [];
  const stop = (reason: StopReason) => {
    stops.push(reason);
    controller.abort(reason);
    for (const listener of listeners) listener(reason);
  };
  let expired = false;
  const run: HandlerRun = {
    db: context.db,
    tenant: context.tenant,
    job,
    stepCommits: new StepGroupCommit(context.db),
    leaseId: job.leaseId as string,
    logger: createLogger('silent'),
    config: { ...loadConfig({}), ...config },
    jobTypes: new HandlerRegistry([definition, ...demoHandlers]),
    signal: controller.signal,
    kill: kill.signal,
    admit: (children) => new QueueLimit(context.db).admit(context.tenant, children),
    stop,
    check: () => {
      if (expired) stop({ kind: 'leaseLost' });
    },
    trustedUntilMs: () => (expired ? 0 : Number.POSITIVE_INFINITY),
  };
  return {
    job,
    stop,
    kill: () => kill.abort(),
    expire: () => {
      expired = true;
    },
    onStop: (listener) => listeners.push(listener),
    end: runHandler(definition, run).then((end) => ({ job, end, stops })),
  };
}

export async function runJob(...args: Parameters<typeof startJob>): Promise<Ran> {
  return (await startJob(...args)).end;
}
