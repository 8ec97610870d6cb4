// Limits for enqueueing: the size of payloads and other JSON values, and `max_queued`, the number of jobs of a tenant
// that may wait at once. Requests, schedules and handlers share the limit.
import type { Database, Queryable } from '../../database/database.ts';
import { statement, tenant } from '../../database/sql.ts';
import { problem } from '../../kernel/errors.ts';
import { JsonText } from '../../kernel/json/json-text.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { unstartedStatuses } from '../model/states.ts';
import { unfinishedIds } from '../read/filter.ts';

// Each daemon counts at most this often, so that the limit costs an enqueue nothing. A burst through several daemons
// may exceed the limit by the jobs they accept within this time.
const countForMs = 1000;

/** The part of a new job that the limit reads. */
interface KeyedJob {
  clientRequestId?: string | undefined;
}

interface Count {
  waiting: Promise<number>;
  /** Jobs that were accepted here since the count. */
  added: number;
  until: number;
}

export class QueueLimit {
  #db: Database;
  #counts = new Map<string, Count>();

  constructor(db: Database) {
    this.#db = db;
  }

  /**
   * Refuses jobs beyond the tenant's limit. Replays of existing jobs are admitted. A caller in a transaction passes it
   * as `db`, because a second connection might never become free.
   */
  async admit(tenant: Tenant, jobs: readonly KeyedJob[], given?: Queryable): Promise<void> {
    const db = given ?? this.#db.forTenant(tenant.schema);
    const max = tenant.settings.max_queued;
    if (max === undefined) return;
    const count = this.#countOf(tenant, max, db);
    const waiting = (await count.waiting) + count.added;
    if (waiting + jobs.length > max && waiting + (await countNew(db, tenant, jobs)) > max) {
      throw problem('QUEUE_FULL', `The tenant has ${waiting} waiting jobs; its limit (max_queued) is ${max}.`, {
        max_queued: max,
      });
    }
    count.added += jobs.length;
  }

  #countOf(tenant: Tenant, max: number, db: Queryable): Count {
    const known = this.#counts.get(tenant.id);
    if (known !== undefined && known.until > performance.now()) return known;
    const count = { waiting: countWaiting(db, tenant, max), added: 0, until: performance.now() + countForMs };
    // A failed count fails the requests that wait for it, not later ones.
    count.waiting.catch(() => this.#counts.delete(tenant.id));
    this.#counts.set(tenant.id, count);
    return count;
  }
}

const countStatement = statement(`
  select count(*)::int as count
    from (${unfinishedIds(unstartedStatuses)}) w`);

async function countWaiting(db: Queryable, { schema }: Tenant, max: number): Promise<number> {
  const [row] = await countStatement.query<{ count: number }>(db, schema, { max: max + 1 });
  return row?.count ?? 0;
}

const knownKeysStatement = statement(`
  select id
    from ${tenant}.jobs
   where client_request_id = any(:keys::text[])`);

/** Counts the jobs that do not exist yet. */
async function countNew(db: Queryable, { schema }: Tenant, jobs: readonly KeyedJob[]): Promise<number> {
  const keys = jobs.flatMap((job) => job.clientRequestId ?? []);
  if (keys.length === 0) return jobs.length;
  return jobs.length - (await knownKeysStatement.query(db, schema, { keys })).length;
}

export const payloadLimitBytes = 1_048_576;
/** For constraints, metrics and error details, which lists and events show. */
export const noteLimitBytes = 32_768;

/** Returns the value as JSON. Throws PAYLOAD_TOO_LARGE, naming the field and the limit. */
export function checkDocument(value: unknown, field: string, limitBytes = payloadLimitBytes): string {
  if (value === undefined || value === null) return '';
  const text = value instanceof JsonText ? value.text : JSON.stringify(value);
  const bytes = Buffer.byteLength(text);
  if (bytes <= limitBytes) return text;
  const detail = `${field} has ${bytes} bytes as JSON; at most ${limitBytes} are allowed.`;
  throw problem('PAYLOAD_TOO_LARGE', detail, { field, limit: limitBytes });
}
