// Admission of requests to the database. A request takes a turn before it takes a connection, so that requests of one
// tenant that all wait for the same lock leave connections for other tenants and for the daemon's own work.
import { problem } from '../../kernel/errors.ts';

export interface TurnsOptions {
  /** Connections of the pool. */
  connections: number;
  /** The share of the turns that one tenant may have at once, if there are others. */
  tenantShare: number;
  /** Tenants that this daemon serves. */
  tenants(): number;
  waitMs?: number;
}

export type Leave = () => void;

interface Line {
  tenantId: string;
  held: number;
  waiting: { begin(leave: Leave): void; timer: NodeJS.Timeout }[];
}

// Connections kept for claims, outcomes, sweeps and key lookups.
const ownConnections = 2;
// The share of the turns that is kept for tenants without any.
const reservedShare = 1 / 4;
// Equal to the pool's timeout for a connection.
const defaultWaitMs = 10_000;
// The limit per tenant; more requests would not be served in time.
const maxWaiting = 1000;

export class Turns {
  readonly #total: number;
  readonly #options: TurnsOptions;
  readonly #lines = new Map<string, Line>();
  /** Lines with waiting requests. */
  readonly #waiting = new Set<Line>();
  #used = 0;

  constructor(options: TurnsOptions) {
    this.#options = options;
    this.#total = Math.max(1, options.connections - Math.min(ownConnections, Math.floor(options.connections / 2)));
  }

  get used(): number {
    return this.#used;
  }

  /** Returns a turn, at once if one is free. Rejects if none becomes free in time. Call the result to end the turn. */
  take(tenantId: string): Leave | Promise<Leave> {
    const line = this.#lineOf(tenantId);
    if (line.waiting.length === 0 && this.#mayBegin(line)) return this.#begin(line);
    if (line.waiting.length >= maxWaiting) throw this.#refused(line);
    return new Promise((resolve, reject) => {
      const refuse = () => {
        line.waiting = line.waiting.filter((one) => one !== waiting);
        if (line.waiting.length === 0) this.#waiting.delete(line);
        this.#forgetIfIdle(line);
        reject(this.#refused(line));
      };
      const waiting = {
        begin: resolve,
        timer: setTimeout(refuse, this.#options.waitMs ?? defaultWaitMs),
      };
      line.waiting.push(waiting);
      this.#waiting.add(line);
    });
  }

  /** Runs `work` within a turn. */
  async within<T>(tenantId: string, work: () => Promise<T>): Promise<T> {
    const leave = await this.take(tenantId);
    try {
      return await work();
    } finally {
      leave();
    }
  }

  #begin(line: Line): Leave {
    line.held += 1;
    this.#used += 1;
    let left = false;
    return () => {
      if (left) return;
      left = true;
      line.held -= 1;
      this.#used -= 1;
      this.#beginNext();
      this.#forgetIfIdle(line);
    };
  }

  /**
   * Starts the waiting request of the tenant with the fewest turns; between equals, of the one that has waited longest.
   */
  #beginNext(): void {
    for (;;) {
      let next: Line | undefined;
      for (const line of this.#waiting) {
        if (this.#mayBegin(line) && (next === undefined || line.held < next.held)) next = line;
      }
      const first = next?.waiting.shift();
      if (next === undefined || first === undefined) return;
      // Moves the tenant to the end of the waiting lines.
      this.#waiting.delete(next);
      if (next.waiting.length > 0) this.#waiting.add(next);
      clearTimeout(first.timer);
      first.begin(this.#begin(next));
    }
  }

  #mayBegin(line: Line): boolean {
    const free = this.#total - this.#used;
    if (free <= 0) return false;
    if (line.held === 0) return true;
    const { tenants, tenantShare } = this.#options;
    const max = tenants() > 1 ? Math.ceil(this.#total * tenantShare) : this.#total;
    return line.held < max && free > Math.ceil(this.#total * reservedShare);
  }

  #refused(line: Line) {
    if (line.held === 0) return problem('OVERLOADED', 'The database is busy with other requests; try again soon.');
    return problem(
      'TOO_MANY_REQUESTS',
      `The tenant has ${line.held} requests in the database and ${line.waiting.length} waiting; wait until some have finished.`,
      { scope: 'tenant' },
    );
  }

  #lineOf(tenantId: string): Line {
    let line = this.#lines.get(tenantId);
    if (line === undefined) {
      line = { tenantId, held: 0, waiting: [] };
      this.#lines.set(tenantId, line);
    }
    return line;
  }

  #forgetIfIdle(line: Line): void {
    if (line.held === 0 && line.waiting.length === 0 && this.#lines.get(line.tenantId) === line) {
      this.#lines.delete(line.tenantId);
    }
  }
}
