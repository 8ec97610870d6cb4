// The registry of daemons: each tells that it lives, what it runs and whether it drains. For people
// only: who owns a job is decided by leases, never by this table.
import { hostname } from 'node:os';
import { v7 as uuidv7 } from 'uuid';
import type { Queryable } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import { Interval } from '../kernel/interval.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';

export interface DaemonState {
  running: number;
  draining: boolean;
  jobTypes: readonly string[];
}

export interface DaemonRegistryOptions {
  db: Queryable;
  logger: Logger;
  /** WORKER_ID. */
  id: string;
  version: string;
  state(): DaemonState;
  everyMs?: number;
}

const beatMs = 5000;
// Long enough to be seen by whoever asks in the morning what happened at night.
const forgetLostAfter = `interval '24 hours'`;

export class DaemonRegistry implements Service {
  readonly name = 'daemon-registry';
  /** A daemon restarted under its old name is another owner. */
  readonly incarnation = uuidv7();
  #options: DaemonRegistryOptions;
  #interval: Interval;
  #warned = false;

  constructor(options: DaemonRegistryOptions) {
    this.#options = options;
    this.#interval = new Interval(this.name, options.everyMs ?? beatMs, () => this.beat(), options.logger);
  }

  /** The newest process of a name has the row. */
  async start(): Promise<void> {
    const { db, id } = this.#options;
    await db.query(`delete from ${controlSchema}.daemons where last_beat_at < now() - ${forgetLostAfter}`);
    await db.query(
      `insert into ${controlSchema}.daemons (id, incarnation, host, pid, version, draining, running, job_types)
       values ($1, $2, $3, $4, $5, $6, $7, $8)
       on conflict (id) do update set incarnation = excluded.incarnation, host = excluded.host, pid = excluded.pid,
         version = excluded.version, draining = excluded.draining, running = excluded.running, job_types = excluded.job_types,
         started_at = excluded.started_at, last_beat_at = excluded.last_beat_at`,
      [id, ...this.#values()],
    );
    await this.#interval.start();
  }

  /** Call it when something changes that people should see at once, such as the begin of a drain. */
  async beat(): Promise<void> {
    const { db, id, logger } = this.#options;
    const [, , , , draining, running, jobTypes] = this.#values();
    const rows = await db.query(
      `update ${controlSchema}.daemons set last_beat_at = now(), draining = $3, running = $4, job_types = $5
        where id = $1 and incarnation = $2 returning id`,
      [id, this.incarnation, draining, running, jobTypes],
    );
    if (rows.length > 0) return;
    // The row was forgotten while this process slept, or another process took the name.
    const again = await db.query(
      `insert into ${controlSchema}.daemons (id, incarnation, host, pid, version, draining, running, job_types)
       values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (id) do nothing returning id`,
      [id, ...this.#values()],
    );
    if (again.length > 0 || this.#warned) return;
    this.#warned = true;
    logger.warn({ workerId: id }, 'another daemon uses the same WORKER_ID; the list of workers shows only that one');
  }

  async stop(): Promise<void> {
    await this.#interval.stop();
    const { db, id } = this.#options;
    await db.query(`delete from ${controlSchema}.daemons where id = $1 and incarnation = $2`, [id, this.incarnation]);
  }

  #values(): unknown[] {
    const { version } = this.#options;
    const { running, draining, jobTypes } = this.#options.state();
    return [this.incarnation, hostname(), process.pid, version, draining, running, [...jobTypes]];
  }
}

export interface DaemonRow {
  id: string;
  incarnation: string;
  host: string;
  pid: number;
  version: string;
  started_at: string;
  last_beat_at: string;
  seconds_since_beat: number;
  state: 'alive' | 'draining' | 'lost';
  running: number;
  job_types: string[];
}

/** `lost`: silent for six beats. It crashed, or it cannot reach the database. */
export async function listDaemons(db: Queryable, lostAfterSeconds = (beatMs / 1000) * 6): Promise<DaemonRow[]> {
  return db.query<DaemonRow>(
    `select id, incarnation, host, pid, version, started_at, last_beat_at, running, job_types,
            extract(epoch from now() - last_beat_at)::float8 as seconds_since_beat,
            case when last_beat_at < now() - $1::float8 * interval '1 second' then 'lost'
                 when draining then 'draining' else 'alive' end as state
       from ${controlSchema}.daemons order by id`,
    [lostAfterSeconds],
  );
}
