// Enqueue requests whose lane another transaction has locked for longer than a commit takes. They wait here without a
// connection until the lane is free, while requests of other lanes go first. Requests of one lane keep their order.
import { problem } from '../../kernel/errors.ts';
import type { Enqueued, NewJob } from './enqueue.ts';

export interface EnqueueRequest {
  jobs: NewJob[];
  actor: string;
  resolve(enqueued: Enqueued[]): void;
  reject(error: unknown): void;
}

export interface ParkedOptions {
  /** Requests are refused after this time. */
  maxWaitMs: number;
  /** Returns which of these lanes are locked now. */
  findLocked(targetIds: string[]): Promise<Set<string>>;
  /** Tries the requests again, and resolves or rejects them. Returns those whose lane is still locked. */
  retry(requests: EnqueueRequest[]): Promise<EnqueueRequest[]>;
  onEmpty(): void;
}

const retryEveryMs = 100;

export class ParkedRequests {
  readonly #options: ParkedOptions;
  #parked: { request: EnqueueRequest; until: number }[] = [];
  /** The lanes and idempotency keys of parked requests. New requests for them must wait. */
  #blocked = new Set<string>();
  #timer: NodeJS.Timeout | undefined;

  constructor(options: ParkedOptions) {
    this.#options = options;
  }

  get isEmpty(): boolean {
    return this.#parked.length === 0;
  }

  mustWait(request: EnqueueRequest): boolean {
    return this.#blocked.size > 0 && namesOf(request).some((name) => this.#blocked.has(name));
  }

  add(requests: EnqueueRequest[]): void {
    const until = performance.now() + this.#options.maxWaitMs;
    for (const request of requests) {
      this.#parked.push({ request, until });
      for (const name of namesOf(request)) this.#blocked.add(name);
    }
    this.#schedule();
  }

  #schedule(): void {
    if (this.isEmpty) return;
    this.#timer ??= setTimeout(() => void this.#retryFree().finally(() => this.#afterRetry()), retryEveryMs);
  }

  #afterRetry(): void {
    this.#timer = undefined;
    if (this.isEmpty) this.#options.onEmpty();
    else this.#schedule();
  }

  async #retryFree(): Promise<void> {
    this.#rejectExpired();
    const requests = this.#parked.map(({ request }) => request);
    const targetIds = [...new Set(requests.flatMap(targetsOf))];
    let ready: EnqueueRequest[];
    try {
      const locked = await this.#options.findLocked(targetIds);
      ready = requests.filter((request) => !targetsOf(request).some((id) => locked.has(id)));
      // Requests that were parked meanwhile have not been checked.
      const fresh = this.#parked.map(({ request }) => request).filter((request) => !requests.includes(request));
      this.#blocked = new Set([
        ...[...locked].map(laneName),
        ...requests.flatMap(keysOf),
        ...[...ready, ...fresh].flatMap(namesOf),
      ]);
    } catch {
      // The database is unavailable; the timer tries again until the requests expire.
      return;
    }
    if (ready.length === 0) return;
    const held = new Set(await this.#options.retry(ready));
    const done = new Set(ready.filter((request) => !held.has(request)));
    this.#parked = this.#parked.filter(({ request }) => !done.has(request));
    if (this.isEmpty) this.#blocked.clear();
  }

  #rejectExpired(): void {
    const now = performance.now();
    const late = this.#parked.filter(({ until }) => until <= now);
    if (late.length === 0) return;
    this.#parked = this.#parked.filter(({ until }) => until > now);
    for (const { request } of late) {
      request.reject(problem('TARGET_LOCKED', 'Another transaction holds the lock of the target; nothing was stored.'));
    }
  }
}

export function targetsOf(request: EnqueueRequest): string[] {
  return request.jobs.flatMap((job) => (job.targetId === undefined ? [] : [job.targetId]));
}

function keysOf(request: EnqueueRequest): string[] {
  return request.jobs.flatMap((job) => (job.clientRequestId === undefined ? [] : [`key ${job.clientRequestId}`]));
}

function namesOf(request: EnqueueRequest): string[] {
  return [...targetsOf(request).map(laneName), ...keysOf(request)];
}

function laneName(targetId: string): string {
  return `lane ${targetId}`;
}
