// Callers that wait at the same time share one commit: while one insert is on its way to the disk,
// the next ones gather. A request that Postgres refuses fails alone.
import { type Database, isConnectionError } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { type Enqueued, enqueue, type NewJob, type Reserve } from './enqueue.ts';

interface Waiting {
  jobs: NewJob[];
  actor: string;
  reserve: Reserve | undefined;
  resolve(enqueued: Enqueued[]): void;
  reject(error: unknown): void;
}

// One commit at a time: those who come meanwhile share the next. A second would only halve the groups.
const parallelPerTenant = 1;
const largestGroup = 500;

/** One per daemon. `group.enqueue()` is `enqueue()` with the commit shared; it resolves after that commit. */
export class EnqueueGroup {
  #db: Database;
  #tenants = new Map<Schema, { waiting: Waiting[]; active: number }>();

  constructor(db: Database) {
    this.#db = db;
  }

  enqueue(schema: Schema, jobs: NewJob[], actor: string, reserve?: Reserve): Promise<Enqueued[]> {
    return new Promise((resolve, reject) => {
      let line = this.#tenants.get(schema);
      if (line === undefined) {
        line = { waiting: [], active: 0 };
        this.#tenants.set(schema, line);
      }
      line.waiting.push({ jobs, actor, reserve, resolve, reject });
      if (line.waiting.length === 1) setImmediate(() => this.#pump(schema));
    });
  }

  #pump(schema: Schema): void {
    const line = this.#tenants.get(schema);
    if (line === undefined) return;
    while (line.active < parallelPerTenant && line.waiting.length > 0) {
      const group = takeGroup(line.waiting);
      line.active += 1;
      void this.#insert(schema, group).finally(() => {
        line.active -= 1;
        this.#pump(schema);
        if (line.active === 0 && line.waiting.length === 0) this.#tenants.delete(schema);
      });
    }
  }

  async #insert(schema: Schema, group: Waiting[]): Promise<void> {
    try {
      const first = group[0] as Waiting;
      const enqueued = await enqueue(
        this.#db,
        schema,
        group.flatMap((w) => w.jobs),
        first.actor,
        first.reserve,
      );
      let position = 0;
      for (const waiting of group) {
        waiting.resolve(enqueued.slice(position, position + waiting.jobs.length));
        position += waiting.jobs.length;
      }
    } catch (error) {
      // Whether a cut connection took the jobs in is unknown to all of them alike.
      if (group.length === 1 || isConnectionError(error)) for (const waiting of group) waiting.reject(error);
      else for (const waiting of group) await this.#insert(schema, [waiting]);
    }
  }
}

/** The longest run of requests by one actor: events of a statement name one. */
function takeGroup(waiting: Waiting[]): Waiting[] {
  const actor = waiting[0]?.actor;
  let jobs = 0;
  let length = 0;
  for (const request of waiting) {
    if (request.actor !== actor || (length > 0 && jobs + request.jobs.length > largestGroup)) break;
    jobs += request.jobs.length;
    length += 1;
  }
  return waiting.splice(0, length);
}
