// Threads for handlers with `isolation: 'thread'`: kept warm, one job each, bounded in number and memory. A thread that
// crashes, leaks or does not stop is terminated; the daemon and its other jobs are not affected.
import type { Worker } from 'node:worker_threads';
import { JobStopped, stopReasonOf } from '../../durable/stop-reason.ts';
import type { JobErrorCode } from '../../jobs/model/job-errors.ts';
import { assertNever } from '../../kernel/errors.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Service } from '../../kernel/service.ts';
import type { ContextParts } from '../attempt/context.ts';
import { startThread } from './start-thread.ts';
import {
  type FromHandler,
  type HandlerCall,
  receiveError,
  sendError,
  type ThreadHealth,
  type ToHandler,
} from './thread-messages.ts';

interface ThreadPoolOptions {
  maxThreads: number;
  memoryMb: number;
  logger: Logger;
}

interface QueuedRun {
  resolve(thread: Worker): void;
  reject(error: unknown): void;
  signal: AbortSignal;
  stop(): void;
}

// Long enough to bridge the gaps of steady work, and short enough to free the memory.
const idleMs = 60_000;
// Above this share of its memory a thread is replaced, so that a leak of one job does not fail the next.
const leakShare = 0.5;

export class ThreadPool implements Service {
  readonly name = 'handler-threads';
  readonly #options: ThreadPoolOptions;
  #idle: { thread: Worker; timer: NodeJS.Timeout }[] = [];
  #busy = new Set<Worker>();
  #waiting: QueuedRun[] = [];

  constructor(options: ThreadPoolOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#idle.length + this.#busy.size;
  }

  async start(): Promise<void> {}

  async stop(): Promise<void> {
    for (const waiting of this.#waiting.splice(0)) waiting.reject(new Error('the daemon is stopping'));
    const threads = [...this.#busy, ...this.#idle.map((idle) => idle.thread)];
    for (const { timer } of this.#idle.splice(0)) clearTimeout(timer);
    await Promise.all(threads.map((thread) => thread.terminate()));
  }

  /** Runs the job's code, or the phase in `parts.phase`, in a thread of its own. */
  async run(target: { file: string; type: string }, parts: ContextParts, kill: AbortSignal): Promise<unknown> {
    const thread = await this.#take(parts.stopping.signal);
    parts.stopping.begin?.();
    let end: ThreadEnd | undefined;
    try {
      end = await callThread(thread, target, parts, kill);
      return end.result();
    } finally {
      this.#give(thread, end);
    }
  }

  #take(signal: AbortSignal): Promise<Worker> {
    const idle = this.#idle.pop();
    if (idle !== undefined) {
      clearTimeout(idle.timer);
      idle.thread.ref();
      this.#busy.add(idle.thread);
      return Promise.resolve(idle.thread);
    }
    if (this.size < this.#options.maxThreads) return Promise.resolve(this.#spawn());
    return this.#wait(signal);
  }

  #wait(signal: AbortSignal): Promise<Worker> {
    return new Promise((resolve, reject) => {
      const stop = () => {
        this.#waiting = this.#waiting.filter((one) => one !== waiting);
        reject(new JobStopped(stopReasonOf(signal) ?? { kind: 'canceled' }));
      };
      const waiting: QueuedRun = { resolve, reject, signal, stop };
      if (signal.aborted) return stop();
      signal.addEventListener('abort', stop, { once: true });
      this.#waiting.push(waiting);
    });
  }

  #spawn(): Worker {
    const thread = startThread(new URL('./handler-thread', import.meta.url), {
      resourceLimits: { maxOldGenerationSizeMb: this.#options.memoryMb },
    });
    this.#busy.add(thread);
    // A running job gets the error as well. Without this listener, the error of an idle thread would end the daemon.
    thread.on('error', (error) => this.#options.logger.error({ err: error }, 'handler thread crashed'));
    thread.on('exit', () => this.#forget(thread));
    return thread;
  }

  #give(thread: Worker, end: ThreadEnd | undefined): void {
    if (!this.#busy.delete(thread)) return;
    if (end === undefined || !this.#isHealthy(end)) {
      void thread.terminate();
      this.#serveNext();
      return;
    }
    const next = this.#waiting.shift();
    if (next !== undefined) {
      this.#hand(next, thread);
      return;
    }
    thread.unref();
    const timer = setTimeout(() => void thread.terminate(), idleMs);
    timer.unref();
    this.#idle.push({ thread, timer });
  }

  #isHealthy({ health }: ThreadEnd): boolean {
    return health.leftovers === 0 && health.heapUsedBytes < this.#options.memoryMb * 1024 * 1024 * leakShare;
  }

  #forget(thread: Worker): void {
    const wasBusy = this.#busy.delete(thread);
    for (const idle of this.#idle) if (idle.thread === thread) clearTimeout(idle.timer);
    this.#idle = this.#idle.filter((idle) => idle.thread !== thread);
    if (wasBusy) this.#serveNext();
  }

  #serveNext(): void {
    const next = this.size < this.#options.maxThreads ? this.#waiting.shift() : undefined;
    if (next !== undefined) this.#hand(next, this.#spawn());
  }

  #hand(next: QueuedRun, thread: Worker): void {
    next.signal.removeEventListener('abort', next.stop);
    this.#busy.add(thread);
    next.resolve(thread);
  }
}

// The daemon's side of one job in a thread: sends the job, serves its effects, forwards the stop, and returns how it
// ended: by a message, by a crash, or terminated.

interface ThreadEnd {
  health: ThreadHealth;
  /** Returns the result of the handler, or throws its error. */
  result(): unknown;
}

/** Rejects if the thread has exited: after a crash, out of memory, after process.exit, or terminated. */
function callThread(
  thread: Worker,
  target: { file: string; type: string },
  parts: ContextParts,
  kill: AbortSignal,
): Promise<ThreadEnd> {
  return new Promise((resolve, reject) => {
    const post = (message: ToHandler) => thread.postMessage(message);
    const trustedUntilMs = () => parts.stopping.trustedUntilMs?.();
    const onMessage = (message: FromHandler) => {
      switch (message.kind) {
        case 'progress':
          return parts.effects().progress(message.percent, message.message, parts.phase);
        case 'log':
          return parts.effects().log(message.level, message.message, message.data);
        case 'partial':
          return parts.onPartial(message.reason);
        case 'call':
          return void serve(parts, message.request).then(
            (value) => post({ kind: 'answer', call: message.call, value, trustedUntilMs: trustedUntilMs() }),
            (error) =>
              post({ kind: 'answer', call: message.call, error: sendError(error), trustedUntilMs: trustedUntilMs() }),
          );
        case 'done':
          return end(() => resolve({ health: message.health, result: () => message.result }));
        case 'failed':
          return end(() =>
            resolve({
              health: message.health,
              result: () => {
                throw receiveError(message.error);
              },
            }),
          );
        default:
          return assertNever(message);
      }
    };
    const onError = (error: Error) => end(() => reject(crashed(reasonOf(error), error)));
    const onExit = (code: number) => end(() => reject(crashed(`its thread ended with code ${code}`)));
    const onStop = () => post({ kind: 'stop', reason: stopReasonOf(parts.stopping.signal) ?? { kind: 'canceled' } });
    const onKill = () =>
      end(async () => {
        // The handler has ended only when the thread has exited.
        await thread.terminate().catch(() => {});
        reject(
          Object.assign(new Error('The handler did not stop and was ended.'), {
            code: 'HANDLER_KILLED' satisfies JobErrorCode,
          }),
        );
      });
    const end = (finish: () => void) => {
      thread.off('message', onMessage).off('error', onError).off('exit', onExit);
      parts.stopping.signal.removeEventListener('abort', onStop);
      kill.removeEventListener('abort', onKill);
      finish();
    };

    thread.on('message', onMessage).on('error', onError).on('exit', onExit);
    const { job, leaseId, stored, phase, results } = parts;
    const { payload, checkpoint } = stored;
    post({
      kind: 'run',
      ...target,
      job,
      leaseId,
      payload,
      checkpoint,
      phase,
      results,
      trustedUntilMs: trustedUntilMs(),
      startUntilMs: parts.stopping.startUntilMs?.(),
    });
    parts.stopping.signal.addEventListener('abort', onStop, { once: true });
    kill.addEventListener('abort', onKill, { once: true });
    if (parts.stopping.signal.aborted) onStop();
    if (kill.aborted) onKill();
  });
}

async function serve(parts: ContextParts, request: HandlerCall): Promise<unknown> {
  const effects = parts.effects();
  switch (request.effect) {
    case 'addUsage':
      await effects.addUsage(request.usage);
      return undefined;
    case 'assertLease':
      return effects.assertLease();
    case 'checkLease':
      return parts.stopping.check?.();
    case 'readStopRequests':
      await parts.stopping.readStopRequests?.();
      return parts.stopping.startUntilMs?.();
    case 'enqueue':
      return effects.enqueue(request.key, request.type, request.payload, request.options);
    case 'checkpoint':
      return effects.checkpoint(request.state);
    case 'loadSteps':
      return effects.steps.load();
    case 'saveSteps':
      return effects.steps.save(request.changes);
    case 'stop':
      return effects.steps.stop(request.reason);
    case 'timeOutStep':
      return effects.steps.timeOut(request.name, request.seconds);
    case 'openSleep':
      return effects.steps.openSleep(request.step, request.end);
    case 'children':
      return effects.steps.children(request.children);
    case 'openEventWait':
      return effects.steps.openEventWait(request.step, request.wanted);
    case 'suspend':
      return effects.steps.suspend(request.waiting, request.leftMs, request.awaited);
    case 'openQuestion':
      return effects.steps.openQuestion(request.step, request.question);
    case 'closeQuestions':
      return effects.steps.closeQuestions();
    default:
      return assertNever(request);
  }
}

function reasonOf(error: Error): string {
  const code = 'code' in error ? error.code : undefined;
  return code === 'ERR_WORKER_OUT_OF_MEMORY' ? 'it used more memory than its thread may have' : error.message;
}

function crashed(reason: string, cause?: Error): Error {
  return Object.assign(new Error(`The handler crashed: ${reason}`, { cause }), {
    code: 'HANDLER_CRASHED' satisfies JobErrorCode,
  });
}
