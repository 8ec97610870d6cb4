// Runs isolated handlers inside a thread, one at a time. It communicates with the daemon by messages only: it has no
// database, and can be terminated at any moment.
import { type MessagePort, parentPort } from 'node:worker_threads';
import type { EnqueuedChild } from '../../durable/durable-context.ts';
import { assertComplete } from '../../durable/durable-functions.ts';
import type { ChildrenAnswer, ChildrenRequest, LoadedCalls, StepStore } from '../../durable/step-store.ts';
import { type Stopping, type StopReason, throwIfMustStop } from '../../durable/stop-reason.ts';
import { toStorable } from '../../durable/storable.ts';
import type { EventWait } from '../../jobs/attempt/event-waits.ts';
import type { OpenWait } from '../../jobs/attempt/steps.ts';
import type { QuestionState } from '../../jobs/questions/ask.ts';
import { monotonicMs } from '../../kernel/clock.ts';
import { type ContextParts, invokeHere, parseCheckpoint, parsePayload } from '../attempt/context.ts';
import type { Effects, LeaseAssertion } from '../attempt/handler-run.ts';
import type { JobDefinition } from '../handlers/define-job.ts';
import { loadDefinitions } from '../handlers/load-handlers.ts';
import {
  type FromHandler,
  type HandlerCall,
  type RunMessage,
  receiveError,
  sendError,
  type ThreadHealth,
  type ToHandler,
} from './thread-messages.ts';

// After that many late answers the handler begins, because the database is slow.
const maxReads = 3;

class HandlerThread {
  readonly #port: MessagePort;
  readonly #definitions = new Map<string, Promise<JobDefinition[]>>();
  readonly #calls = new Map<number, { resolve(value: unknown): void; reject(error: unknown): void }>();
  #controller = new AbortController();
  /** The time for which the lease may be trusted, as last reported to this thread. */
  #trustedUntilMs = Number.POSITIVE_INFINITY;
  #lastCall = 0;

  constructor(port: MessagePort) {
    this.#port = port;
    port.on('message', (message: ToHandler) => this.#receive(message));
  }

  #receive(message: ToHandler): void {
    switch (message.kind) {
      case 'run':
        void this.#run(message);
        break;
      case 'stop':
        this.#controller.abort(message.reason);
        break;
      case 'answer': {
        this.#trustUntil(message.trustedUntilMs);
        const call = this.#calls.get(message.call);
        this.#calls.delete(message.call);
        if (message.error === undefined) call?.resolve(message.value);
        else call?.reject(receiveError(message.error));
      }
    }
  }

  async #run(message: RunMessage): Promise<void> {
    this.#controller = new AbortController();
    this.#calls.clear();
    this.#trustUntil(message.trustedUntilMs);
    const stopping = this.#stopping(this.#controller.signal);
    let parts: ContextParts | undefined;
    try {
      const definition = await this.#find(message);
      parts = {
        job: message.job,
        leaseId: message.leaseId,
        stored: message,
        payload: parsePayload(definition, message.payload),
        stopping,
        lastCheckpoint: parseCheckpoint(definition, message.checkpoint),
        phase: message.phase,
        results: message.results,
        releasesLane: definition.whileWaiting === 'release',
        effects: () => this.#effects,
        onPartial: (reason) => this.#send({ kind: 'partial', reason }),
      };
      await this.#readStopRequests(message.startUntilMs, stopping.signal);
      await throwIfMustStop(stopping);
      const value = await invokeHere(definition, parts);
      if (parts.phase === undefined) await assertComplete(parts, message.job.attempt <= 1);
      // The daemon checks the size. A value that cannot be sent in a message is refused here.
      const stored = toStorable(value, Number.POSITIVE_INFINITY, 'The result');
      if (!stored.ok) throw Object.assign(new Error(stored.error.message), { code: stored.error.code });
      this.#send({ kind: 'done', result: stored.value, health: health() });
    } catch (error) {
      await parts?.durable?.reopen(error).catch(() => {});
      this.#send({ kind: 'failed', error: sendError(error), health: health() });
    }
  }

  /** The job may have waited for its thread, and the thread for its code. The answer may have waited in the queue. */
  async #readStopRequests(startUntilMs = Number.POSITIVE_INFINITY, signal: AbortSignal): Promise<void> {
    let untilMs = startUntilMs;
    for (let reads = 0; reads < maxReads && untilMs <= monotonicMs() && !signal.aborted; reads++) {
      untilMs = (await this.#call({ effect: 'readStopRequests' })) as number;
    }
  }

  #trustUntil(ms: number | undefined): void {
    this.#trustedUntilMs = ms ?? Number.POSITIVE_INFINITY;
  }

  #stopping(signal: AbortSignal): Stopping {
    return {
      signal,
      check: async () => {
        // The daemon renews the lease meanwhile and answers with the new time. A lost lease aborts the signal first.
        while (!signal.aborted && monotonicMs() >= this.#trustedUntilMs) await this.#call({ effect: 'checkLease' });
      },
    };
  }

  async #find({ file, type }: RunMessage): Promise<JobDefinition> {
    let loading = this.#definitions.get(file);
    if (loading === undefined) {
      loading = loadDefinitions(file);
      this.#definitions.set(file, loading);
    }
    const definition = (await loading).find((one) => one.type === type);
    if (definition === undefined) throw new Error(`${file} no longer defines job type "${type}"`);
    return definition;
  }

  readonly #steps: StepStore = {
    load: async () => (await this.#call({ effect: 'loadSteps' })) as LoadedCalls,
    save: async (changes) => (await this.#call({ effect: 'saveSteps', changes })) as StopReason | undefined,
    stop: async (reason) => {
      await this.#call({ effect: 'stop', reason });
    },
    timeOut: async (name, seconds) => {
      await this.#call({ effect: 'timeOutStep', name, seconds });
    },
    openSleep: async (step, end) => (await this.#call({ effect: 'openSleep', step, end })) as OpenWait,
    children: async (request) =>
      (await this.#call({ effect: 'children', children: plainChildren(request) })) as ChildrenAnswer,
    openEventWait: async (step, wanted) => (await this.#call({ effect: 'openEventWait', step, wanted })) as EventWait,
    suspend: async (waiting, leftMs, awaited) => {
      await this.#call({ effect: 'suspend', waiting, leftMs, awaited });
    },
    openQuestion: async (step, question) =>
      (await this.#call({ effect: 'openQuestion', step, question })) as QuestionState,
    closeQuestions: async () => {
      await this.#call({ effect: 'closeQuestions' });
    },
  };

  readonly #effects: Effects = {
    steps: this.#steps,
    progress: (percent, message) => this.#send({ kind: 'progress', percent, message }),
    log: (level, message, data) => this.#send({ kind: 'log', level, message, data: plain(data) }),
    addUsage: async (usage) => {
      await this.#call({ effect: 'addUsage', usage });
    },
    assertLease: async () => {
      for (;;) {
        const assertion = (await this.#call({ effect: 'assertLease' })) as LeaseAssertion;
        // The answer may have waited in this thread's queue.
        if (monotonicMs() < assertion.validUntilMs) return assertion;
      }
    },
    enqueue: async (key, type, payload, options) =>
      (await this.#call({ effect: 'enqueue', key, type, payload: plain(payload), options })) as EnqueuedChild,
    checkpoint: async (state) => {
      const stored = toStorable(state, Number.POSITIVE_INFINITY, 'The checkpoint');
      if (!stored.ok) throw Object.assign(new Error(stored.error.message), { code: stored.error.code });
      await this.#call({ effect: 'checkpoint', state: stored.value });
    },
    flush: async () => {},
  };

  #call(request: HandlerCall): Promise<unknown> {
    this.#lastCall += 1;
    const call = this.#lastCall;
    return new Promise((resolve, reject) => {
      this.#calls.set(call, { resolve, reject });
      this.#send({ kind: 'call', call, request });
    });
  }

  #send(message: FromHandler): void {
    this.#port.postMessage(message);
  }
}

/** Returns data that a message can carry, with a note in place of values that JSON cannot hold. */
function plain<T>(value: T): T {
  const stored = toStorable(value, Number.POSITIVE_INFINITY, 'data');
  return (stored.ok ? stored.value : { not_stored: stored.error.message }) as T;
}

function plainChildren(request: ChildrenRequest): ChildrenRequest {
  const { open } = request;
  if (open === undefined || !('jobs' in open)) return request;
  return { ...request, open: { jobs: open.jobs.map((job) => ({ ...job, payload: plain(job.payload) })) } };
}

function health(): ThreadHealth {
  const leftovers = process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length;
  return { heapUsedBytes: process.memoryUsage().heapUsed, leftovers };
}

// A setting of each thread: stacks name source lines.
process.setSourceMapsEnabled(true);
if (parentPort !== null) new HandlerThread(parentPort);
