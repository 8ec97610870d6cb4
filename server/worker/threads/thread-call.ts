// The daemon's side of one job in a thread: sends the job, serves its effects, forwards the stop, and returns how it
// ended: by a message, by a crash, or killed.
import type { Worker } from 'node:worker_threads';
import type { JobErrorCode } from '../../jobs/model/job-errors.ts';
import { assertNever } from '../../kernel/errors.ts';
import type { ContextParts } from '../attempt/context.ts';
import { stopReasonOf } from '../attempt/stop-reason.ts';
import {
  type FromHandler,
  type HandlerCall,
  receiveError,
  sendError,
  type ThreadHealth,
  type ToHandler,
} from './thread-messages.ts';

export interface ThreadEnd {
  health: ThreadHealth;
  /** What the handler returned, or throws what it threw. */
  result(): unknown;
}

/** Rejects if the thread has exited: by a crash, out of memory, process.exit, or killed. */
export function callThread(
  thread: Worker,
  target: { file: string; type: string },
  parts: ContextParts,
  kill: AbortSignal,
): Promise<ThreadEnd> {
  return new Promise((resolve, reject) => {
    const post = (message: ToHandler) => thread.postMessage(message);
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
            (value) => post({ kind: 'answer', call: message.call, value }),
            (error) => post({ kind: 'answer', call: message.call, error: sendError(error) }),
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
    post({ kind: 'run', ...target, job, leaseId, payload, checkpoint, phase, results });
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
    case 'enqueue':
      return effects.enqueue(request.key, request.type, request.payload, request.options);
    case 'checkpoint':
      return effects.checkpoint(request.state);
    case 'loadSteps':
      return effects.steps.load();
    case 'saveSteps':
      return effects.steps.save(request.ends);
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
