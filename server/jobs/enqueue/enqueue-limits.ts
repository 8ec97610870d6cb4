// Limits of what may be enqueued: the bytes of a payload or another JSON value, and `max_queued`, how many jobs of a
// tenant may wait at once, whether requests, schedules or handlers enqueue them.
import type { Database, Queryable } from '../../database/database.ts';
import { statement, tenant } from '../../database/sql.ts';
import { problem } from '../../kernel/errors.ts';
import { JsonText } from '../../kernel/json.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { unstartedStatuses } from '../model/states.ts';
import { unfinishedIds } from '../read/filter.ts';

// One instance per daemon counts this often at most, so that the limit costs an enqueue nothing. A burst through several
// daemons may pass it by what they accept within that time.
const countForMs = 1000;

/** The part of a new job that the limit reads. */
interface KeyedJob {
  clientRequestId?: string | undefined;
}

interface Count {
  waiting: Promise<number>;
  /** Accepted here since the count. */
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
   * Refuses jobs beyond the tenant's limit; replays of jobs that exist already are admitted.
   * A caller in a transaction passes it as `db`: a second connection might never become free.
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
    // A failed count is the failure of the requests that wait for it, not of the next ones.
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

/** How many of them do not exist yet. */
async function countNew(db: Queryable, { schema }: Tenant, jobs: readonly KeyedJob[]): Promise<number> {
  const keys = jobs.flatMap((job) => job.clientRequestId ?? []);
  if (keys.length === 0) return jobs.length;
  return jobs.length - (await knownKeysStatement.query(db, schema, { keys })).length;
}

export const payloadLimitBytes = 1_048_576;
/** Constraints, metrics, the details of an error: notes beside a job, shown in lists and events. */
export const noteLimitBytes = 32_768;

/** The value as JSON. Throws PAYLOAD_TOO_LARGE, which names the field and the limit. */
export function checkDocument(value: unknown, field: string, limitBytes = payloadLimitBytes): string {
  if (value === undefined || value === null) return '';
  const text = value instanceof JsonText ? value.text : JSON.stringify(value);
  const bytes = Buffer.byteLength(text);
  if (bytes <= limitBytes) return text;
  const detail = `${field} has ${bytes} bytes as JSON; at most ${limitBytes} are allowed.`;
  throw problem('PAYLOAD_TOO_LARGE', detail, { field, limit: limitBytes });
}
