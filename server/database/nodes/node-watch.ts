// Finds out that a node of a cluster does not answer: its machine is frozen, or the network drops its packets. Its
// statements would wait for a minute, and the polls and sweeps of other tenants behind them. A statement may take long
// on a healthy node too, so a connection of its own asks the node.
import pg from 'pg';
import type { Logger } from '../../kernel/logger.ts';

export interface NodeWatchOptions {
  logger: Logger;
  /** True if the node answers. */
  answers(): Promise<boolean>;
  /** Ends the statements in progress. */
  onSilent(): void;
  suspectAfterMs?: number;
}

const suspectAfterMs = 5_000;
const checkTimeoutMs = 5_000;
// After the event loop was blocked, for what the node has answered meanwhile.
const graceMs = 1_000;
// A busy node may miss one.
const checks = 2;
const recheckMs = 1_000;

export class NodeWatch {
  readonly #options: NodeWatchOptions;
  readonly #suspectAfterMs: number;
  /** The begin of each use in progress, oldest first. */
  readonly #uses = new Set<{ since: number }>();
  #timer: NodeJS.Timeout | undefined;
  #recheck: NodeJS.Timeout | undefined;
  #checking: Promise<void> | undefined;
  #isSilent = false;
  #isClosed = false;

  constructor(options: NodeWatchOptions) {
    this.#options = options;
    this.#suspectAfterMs = options.suspectAfterMs ?? suspectAfterMs;
  }

  /** Fails at once while the node does not answer, as a lost connection would. */
  async use<T>(work: () => Promise<T>): Promise<T> {
    if (this.#isSilent) throw silentNode();
    const use = { since: performance.now() };
    this.#uses.add(use);
    this.#timer ??= setTimeout(() => this.#tick(), this.#suspectAfterMs).unref();
    try {
      return await work();
    } finally {
      this.#uses.delete(use);
    }
  }

  get isSilent(): boolean {
    return this.#isSilent;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#recheck);
    await this.#checking;
  }

  #tick(): void {
    this.#timer = undefined;
    const [oldest] = this.#uses;
    if (oldest === undefined || this.#isClosed) return;
    const age = performance.now() - oldest.since;
    if (age >= this.#suspectAfterMs) this.#check(checks);
    this.#timer = setTimeout(
      () => this.#tick(),
      Math.max(this.#suspectAfterMs - age, this.#suspectAfterMs / 2),
    ).unref();
  }

  #check(attempts: number): void {
    if (this.#isClosed) return;
    this.#checking ??= this.#ask(attempts).finally(() => {
      this.#checking = undefined;
      if (this.#isSilent && !this.#isClosed) this.#recheck = setTimeout(() => this.#check(1), recheckMs).unref();
    });
  }

  async #ask(attempts: number): Promise<void> {
    const { logger, answers, onSilent } = this.#options;
    let isSilent = true;
    for (let n = 0; isSilent && n < attempts; n++) isSilent = !(await answers());
    if (isSilent === this.#isSilent || this.#isClosed) return;
    this.#isSilent = isSilent;
    if (!isSilent) return logger.info('node answers again');
    logger.error('node does not answer; statements of its tenants fail until it does');
    onSilent();
  }
}

/** An error of the node, not of the server to which the statement would go. */
export function silentNode(): Error {
  return Object.assign(new Error('the node of the tenant does not answer'), { code: '08006', severity: 'ERROR' });
}

/** Opens a connection to the server and asks it for an answer. A refusal is one too. */
export async function serverAnswers(url: string, timeoutMs = checkTimeoutMs): Promise<boolean> {
  const client = new pg.Client({ connectionString: url, application_name: 'leasehold-node-watch' });
  client.on('error', () => {});
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => {
      timer = setTimeout(() => resolve(false), graceMs);
    }, timeoutMs);
  });
  try {
    return await Promise.race([isAnswered(client), timeout]);
  } finally {
    clearTimeout(timer);
    (client as unknown as { connection: { stream: { destroy(): void } } }).connection.stream.destroy();
  }
}

async function isAnswered(client: pg.Client): Promise<boolean> {
  try {
    await client.connect();
    await client.query('select 1');
    return true;
  } catch (error) {
    return error instanceof pg.DatabaseError;
  }
}
