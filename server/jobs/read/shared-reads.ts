// Shared reads of single jobs. Requests of a tenant that arrive while a statement is in flight are read together by the
// next one. A single caller does not wait.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { problem } from '../../kernel/errors.ts';
import type { Job } from '../model/job.ts';
import { findJob, readSmallJobs } from './read-jobs.ts';

/** Runs a statement when the tenant may send one. */
type WithTurn = <T>(work: () => Promise<T>) => Promise<T>;

interface Reader {
  db: Database;
  schema: Schema;
  withTurn: WithTurn;
}

interface PendingRead extends Reader {
  id: string;
  found: Promise<Job | undefined>;
  resolve(job: Job | undefined | Promise<Job | undefined>): void;
  reject(error: unknown): void;
}

interface TenantReads {
  /** Reads that were not sent yet, by id of the job. */
  waiting: Map<string, PendingRead>;
  isReading: boolean;
}

const maxPerStatement = 50;
// The limit per tenant; more requests would not be served in time.
const maxWaiting = 1000;

export class SharedReads {
  readonly #tenants = new Map<Schema, TenantReads>();

  /** Sees everything that was committed before the call. */
  find(id: string, reader: Reader): Promise<Job | undefined> {
    const reads = this.#readsOf(reader.schema);
    const known = reads.waiting.get(id);
    if (known !== undefined) return known.found;
    if (reads.waiting.size >= maxWaiting) {
      throw problem('TOO_MANY_REQUESTS', 'Too many reads of this tenant are waiting; wait until some have finished.', {
        scope: 'tenant',
      });
    }
    const waiting = { ...reader, id } as PendingRead;
    waiting.found = new Promise((resolve, reject) => {
      waiting.resolve = resolve;
      waiting.reject = reject;
    });
    reads.waiting.set(id, waiting);
    // Requests that arrive together share the first statement.
    if (reads.waiting.size === 1 && !reads.isReading) setImmediate(() => void this.#readAll(reader.schema, reads));
    return waiting.found;
  }

  #readsOf(schema: Schema): TenantReads {
    let reads = this.#tenants.get(schema);
    if (reads === undefined) {
      reads = { waiting: new Map(), isReading: false };
      this.#tenants.set(schema, reads);
    }
    return reads;
  }

  async #readAll(schema: Schema, reads: TenantReads): Promise<void> {
    if (reads.isReading) return;
    reads.isReading = true;
    while (reads.waiting.size > 0) await readTogether(take(reads.waiting));
    this.#tenants.delete(schema);
  }
}

function take(waiting: Map<string, PendingRead>): PendingRead[] {
  const group: PendingRead[] = [];
  for (const one of waiting.values()) {
    if (group.length === maxPerStatement) break;
    group.push(one);
  }
  if (group.length === waiting.size) waiting.clear();
  else for (const { id } of group) waiting.delete(id);
  return group;
}

async function readTogether(group: PendingRead[]): Promise<void> {
  const [{ db, schema, withTurn }] = group as [PendingRead];
  if (group.length === 1) return readAlone(group[0] as PendingRead);
  try {
    const found = await withTurn(() =>
      readSmallJobs(
        db,
        schema,
        group.map(({ id }) => id),
      ),
    );
    const byId = new Map(found.map((job) => [job.id, job]));
    for (const one of group) {
      const job = byId.get(one.id);
      // A large job is read separately, so that it does not delay the others.
      if (job === undefined) void readAlone(one);
      else one.resolve(job);
    }
  } catch (error) {
    for (const { reject } of group) reject(error);
  }
}

async function readAlone({ id, db, schema, withTurn, resolve, reject }: PendingRead): Promise<void> {
  try {
    resolve(await withTurn(() => findJob(db, schema, id)));
  } catch (error) {
    reject(error);
  }
}
