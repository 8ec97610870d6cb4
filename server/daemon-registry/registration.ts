// Writes this daemon's row in the table of daemons: that it is live, which types it runs, and whether it is draining.
// The row of a daemon that died is removed after a day.
import { hostname } from 'node:os';
import { v4 as uuidv4 } from 'uuid';
import type { Queryable } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import { runQuery, statement } from '../database/sql.ts';
import type { Logger } from '../kernel/logger.ts';
import { Interval, type Service } from '../kernel/service.ts';
import { liveSeconds } from './live-daemons.ts';

interface RegistrationOptions {
  db: Queryable;
  logger: Logger;
  workerId: string;
  version: string;
  types(): readonly string[];
  running(): number;
  draining(): boolean;
  /** The rest of a drain's grace period. */
  graceLeftMs?(): number | undefined;
  /**
   * Called after each write with the number of other live daemons, and the number of those that could run the same
   * jobs.
   */
  onPeers?(live: number, able: number): void;
}

// A daemon counts as lost after `liveSeconds`, so some heartbeats may fail. While nothing changes, every other one is
// skipped.
const beatMs = 5_000;
const quietBeatMs = 9_000;

/** Writes the row of this daemon, deletes old rows, and counts the others. */
const writeBeat = statement(`
  with registered as (
    insert into ${controlSchema}.daemons (id, incarnation, host, pid, version, draining, running, job_types, drain_ends_at)
    values (:id, :incarnation, :host, :pid, :version, :draining, :running, :types,
            now() + :drainEndsInMs::float8 * interval '1 millisecond')
    on conflict (id) do update set
      incarnation = excluded.incarnation,
      host = excluded.host,
      pid = excluded.pid,
      version = excluded.version,
      draining = excluded.draining,
      drain_ends_at = excluded.drain_ends_at,
      running = excluded.running,
      job_types = excluded.job_types,
      last_beat_at = excluded.last_beat_at,
      started_at = case
        when daemons.incarnation = excluded.incarnation then daemons.started_at
        else excluded.started_at
      end
    where :takeOver::boolean
       or daemons.incarnation = excluded.incarnation
       or daemons.last_beat_at < now() - :liveSeconds::float8 * interval '1 second'),
  gone as (
    delete from ${controlSchema}.daemons
     where id <> :id
       and last_beat_at < now() - interval '1 day')
  select count(*)::int as live,
         count(*) filter (where not draining and job_types && :types)::int as able
    from ${controlSchema}.daemons
   where id <> :id
     and last_beat_at > now() - :liveSeconds::float8 * interval '1 second'`);

export class DaemonRegistration implements Service {
  readonly name = 'registration';
  #options: RegistrationOptions;
  #interval: Interval;
  #lastReported = '';
  #lastReportedAt = Number.NEGATIVE_INFINITY;
  /** Distinguishes a restarted daemon from its predecessor of the same name. The last one to register keeps the row. */
  #incarnation = uuidv4();

  constructor(options: RegistrationOptions) {
    this.#options = options;
    this.#interval = new Interval(this.name, beatMs, () => this.#beatIfDue(), options.logger);
  }

  async start(): Promise<void> {
    await this.#write('takeOver');
    await this.#interval.start();
  }

  /** Writes the row soon, for example because a drain has begun. */
  wake(): void {
    this.#interval.wake();
  }

  async stop(): Promise<void> {
    await this.#interval.stop();
    const { db, workerId } = this.#options;
    await runQuery(db, `delete from ${controlSchema}.daemons where id = :workerId and incarnation = :incarnation`, {
      workerId,
      incarnation: this.#incarnation,
    }).catch(() => {});
  }

  async beat(): Promise<void> {
    await this.#write('keep');
  }

  /**
   * Registering takes the row from an earlier process of the same name. A later beat writes only its own row, or one
   * whose process is lost. Only the database's clock decides which of two processes is the current one.
   */
  async #write(mode: 'takeOver' | 'keep'): Promise<void> {
    const { db, workerId, version } = this.#options;
    const state = this.#state();
    const [row] = await writeBeat.query<{ live: number; able: number }>(db, controlSchema, {
      id: workerId,
      incarnation: this.#incarnation,
      host: hostname(),
      pid: process.pid,
      version,
      draining: state.draining,
      running: state.running,
      types: state.types,
      drainEndsInMs: this.#options.graceLeftMs?.() ?? null,
      takeOver: mode === 'takeOver',
      liveSeconds,
    });
    this.#options.onPeers?.(row?.live ?? 1, row?.able ?? 1);
    this.#lastReported = JSON.stringify(state);
    this.#lastReportedAt = performance.now();
  }

  async #beatIfDue(): Promise<void> {
    if (performance.now() - this.#lastReportedAt < quietBeatMs && JSON.stringify(this.#state()) === this.#lastReported)
      return;
    await this.beat();
  }

  #state() {
    const { draining, running, types } = this.#options;
    return { draining: draining(), running: running(), types: [...types()] };
  }
}
