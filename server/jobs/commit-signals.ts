// The signals after a commit. Code that has committed calls `eventsWritten` and `workAvailable`; streams, statistics,
// webhooks, workers and other daemons subscribe. A signal is a hint: polling finds the work that it misses.
import type { Tenant } from '../tenants/tenant.ts';
import type { Enqueued } from './enqueue/enqueue.ts';

/**
 * Who is signaled. `daemon`: only this daemon, because the others know already or cannot run the jobs. `all`: this and
 * the other daemons. `peers`: only the other daemons.
 */
export type Reach = 'daemon' | 'all' | 'peers';

interface Work {
  reach: Reach;
  /** Another daemon sent the signal. */
  fromPeer: boolean;
  /** Milliseconds until the first of the new PENDING jobs is due. */
  dueInMs: number | undefined;
  /** None of the jobs can be claimed before it is due. */
  isLater: boolean;
}

export interface WorkOptions {
  reach?: Reach;
  fromPeer?: boolean;
  /** The new jobs, if the signal comes from an enqueue. */
  enqueued?: readonly Enqueued[];
}

type EventsListener = (tenant: Tenant, reach: Reach) => void;
type WorkListener = (tenant: Tenant, work: Work) => void;

export class CommitSignals {
  readonly #eventsListeners: EventsListener[] = [];
  readonly #workListeners: WorkListener[] = [];
  readonly #dependencyListeners: ((tenant: Tenant) => void)[] = [];
  readonly #receivedListeners: ((tenant: Tenant) => void)[] = [];

  onEventsWritten(listener: EventsListener): void {
    this.#eventsListeners.push(listener);
  }

  onWorkAvailable(listener: WorkListener): void {
    this.#workListeners.push(listener);
  }

  onDependenciesWritten(listener: (tenant: Tenant) => void): void {
    this.#dependencyListeners.push(listener);
  }

  onEventReceived(listener: (tenant: Tenant) => void): void {
    this.#receivedListeners.push(listener);
  }

  /** An event from outside was stored; jobs may wait for it. */
  eventReceived(tenant: Tenant): void {
    this.eventsWritten(tenant);
    for (const listener of this.#receivedListeners) listener(tenant);
  }

  /** Jobs that wait for other jobs were committed. */
  dependenciesWritten(tenant: Tenant): void {
    for (const listener of this.#dependencyListeners) listener(tenant);
  }

  /** Jobs were enqueued or changed, so that there are both: new events, and jobs that may be claimed. */
  jobsWritten(tenant: Tenant, enqueued: readonly Enqueued[] = []): void {
    this.eventsWritten(tenant);
    this.workAvailable(tenant, { enqueued });
  }

  /** Events of the tenant were committed. Cheap enough for every commit. */
  eventsWritten(tenant: Tenant, reach: Reach = 'all'): void {
    for (const listener of this.#eventsListeners) listener(tenant, reach);
  }

  /** A job of the tenant may be claimed, now or when it is due. Cheap enough for every commit. */
  workAvailable(tenant: Tenant, { reach = 'all', fromPeer = false, enqueued = [] }: WorkOptions = {}): void {
    if (enqueued.some(({ job }) => job.status === 'WAITING')) this.dependenciesWritten(tenant);
    const isLater = enqueued.length > 0 && enqueued.every(canOnlyBeDueLater);
    const work = { reach, fromPeer, dueInMs: firstDueInMs(enqueued), isLater };
    for (const listener of this.#workListeners) listener(tenant, work);
  }
}

/** A job with a target may have queued other due jobs of its lane. */
function canOnlyBeDueLater({ kind, job }: Enqueued): boolean {
  return kind === 'created' && job.status === 'PENDING' && job.targetId === null;
}

/** Uses the database's clock only: both times come from it. */
function firstDueInMs(enqueued: readonly Enqueued[]): number | undefined {
  let first: number | undefined;
  for (const { job } of enqueued) {
    if (job.status !== 'PENDING') continue;
    const ms = Date.parse(job.runAt) - Date.parse(job.createdAt);
    if (first === undefined || ms < first) first = ms;
  }
  return first;
}
