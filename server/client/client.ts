// The client of the HTTP API. It uses only fetch, for Node, browsers and edge runtimes.

import {
  type Enqueued,
  type EnqueueResult,
  enqueueMany,
  enqueueOne,
  type JobRequest,
  type ManyOptions,
  type SingleOptions,
} from './enqueue-requests.ts';
import { Events } from './events.ts';
import type { Attention, Counts, HoldCount, StatsSnapshot, Worker } from './generated/api-types.ts';
import type { InputOf, JobReference, ResultOf } from './job-reference.ts';
import { Jobs } from './jobs.ts';
import { Budgets, Limits } from './limits-and-budgets.ts';
import { Operations } from './operations.ts';
import { Questions } from './questions.ts';
import { Schedules } from './schedules.ts';
import { Targets } from './targets.ts';
import { type Answer, type CallOptions, type ClientOptions, type RequestOptions, Transport } from './transport.ts';

export class LeaseholdClient {
  readonly jobs: Jobs;
  readonly targets: Targets;
  readonly schedules: Schedules;
  readonly limits: Limits;
  readonly budgets: Budgets;
  readonly operations: Operations;
  readonly questions: Questions;
  readonly events: Events;
  readonly #transport: Transport;

  constructor(options: ClientOptions) {
    this.#transport = new Transport(options);
    this.events = new Events(this.#transport);
    this.jobs = new Jobs(this.#transport, this.events);
    this.targets = new Targets(this.#transport);
    this.schedules = new Schedules(this.#transport);
    this.limits = new Limits(this.#transport);
    this.budgets = new Budgets(this.#transport);
    this.operations = new Operations(this.#transport);
    this.questions = new Questions(this.#transport);
  }

  /**
   * Enqueues a job exactly once, even if a request or an answer is lost. The job is its definition or its type:
   * `enqueue<typeof sendInvoice>('invoice.send', payload)` needs no import at run time.
   */
  enqueue<J extends JobReference>(job: J, payload: InputOf<J>, options?: SingleOptions): Promise<Enqueued<ResultOf<J>>>;
  enqueue<J extends JobReference>(
    type: J['type'],
    payload: InputOf<J>,
    options?: SingleOptions,
  ): Promise<Enqueued<ResultOf<J>>>;
  enqueue(type: string, payload?: unknown, options?: SingleOptions): Promise<Enqueued>;
  enqueue(job: JobReference | string, payload?: unknown, options: SingleOptions = {}): Promise<Enqueued> {
    return enqueueOne(this.#transport, typeof job === 'string' ? job : job.type, payload, options);
  }

  /** Returns a result for each request, in their order. Sent in batches of up to 1,000 jobs. */
  enqueueMany<const Q extends readonly JobRequest[]>(
    requests: Q,
    options: ManyOptions = {},
  ): Promise<{ -readonly [K in keyof Q]: EnqueueResult<NonNullable<Q[K]['types']>['result']> }> {
    const results = enqueueMany(this.#transport, requests, options);
    return results as Promise<{ -readonly [K in keyof Q]: EnqueueResult<NonNullable<Q[K]['types']>['result']> }>;
  }

  /** Everything that needs a person now. */
  attention(call: CallOptions = {}): Promise<Attention> {
    return this.#get('/api/attention', call);
  }

  /** The number of jobs and questions that wait for a person. */
  holdCount(call: CallOptions = {}): Promise<HoldCount> {
    return this.#get('/api/attention/count', call);
  }

  /** The number of jobs by status. */
  counts(call: CallOptions = {}): Promise<Counts> {
    return this.#get('/api/stats/jobs', call);
  }

  stats(call: CallOptions = {}): Promise<StatsSnapshot> {
    return this.#get('/api/stats/snapshot', call);
  }

  /** Lists the daemons; needs an operator's key. */
  async workers(call: CallOptions = {}): Promise<Worker[]> {
    return (await this.#get<{ workers: Worker[] }>('/api/admin/workers', call)).workers;
  }

  /** Calls any other route. GET is repeated; other methods only with `repeatable: true`. */
  request<T = unknown>(method: string, path: string, options: RequestOptions = {}): Promise<Answer<T>> {
    return this.#transport.request<T>(method, path, { repeatable: method === 'GET', ...options });
  }

  async #get<T>(path: string, call: CallOptions): Promise<T> {
    return (await this.#transport.request<T>('GET', path, { ...call, repeatable: true })).body;
  }
}
