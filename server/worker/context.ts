// What a handler is given. Everything behind it is made on first use: a job that uses nothing pays nothing.
import type { JobContext, JobDefinition } from './define-job.ts';
import type { HandlerRun } from './handler-run.ts';
import { JobStopped, stopReasonOf } from './stop-reason.ts';

export function createContext(_definition: JobDefinition, run: HandlerRun): JobContext {
  const { job } = run;
  const log = Object.assign(() => {}, { warn: () => {}, error: () => {} });
  return {
    job: { ...job, tenant: run.tenant.slug },
    payload: job.payload,
    signal: run.signal,
    lastCheckpoint: job.checkpoint ?? undefined,
    lease: { id: run.leaseId, fence: `${job.id}:${job.attempt}:${run.leaseId}`, assert: async () => {} },
    log,
    progress: () => {},
    phaseResult: () => undefined,
    phaseResults: () => ({}),
    addUsage: async () => {},
    sleep: (ms) => sleep(ms, run.signal),
    enqueue: async () => ({ id: '' }),
    checkpoint: async () => {},
    markPartial: () => {},
  };
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new JobStopped(stopReasonOf(signal) ?? { kind: 'canceled' }));
    };
    const timer = setTimeout(() => {
      signal.removeEventListener('abort', stop);
      resolve();
    }, ms);
    if (signal.aborted) stop();
    else signal.addEventListener('abort', stop, { once: true });
  });
}
