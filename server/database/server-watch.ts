// Looks at all servers of a database now and then: notices a primary that lost its role while connections to it live
// on, and two servers that both accept writes.
import { Interval } from '../kernel/interval.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import type { Servers } from './servers.ts';

export interface ServerWatchOptions {
  servers: Servers;
  logger: Logger;
  /** Another server is used from now on: connections to the one before are to be given up. */
  onMoved(): void;
  everyMs?: number;
}

export class ServerWatch implements Service {
  readonly name = 'database-servers';
  readonly #options: ServerWatchOptions;
  readonly #interval: Interval;
  #generation: number;
  #reported = '';

  constructor(options: ServerWatchOptions) {
    this.#options = options;
    this.#generation = options.servers.generation;
    this.#interval = new Interval(this.name, options.everyMs ?? 5_000, () => this.look(), options.logger);
  }

  async start(): Promise<void> {
    // With one host there is nothing to look at.
    if (this.#options.servers.urls.length > 1) await this.#interval.start();
  }

  async stop(): Promise<void> {
    await this.#interval.stop();
  }

  async look(): Promise<void> {
    const { servers, logger, onMoved } = this.#options;
    // That none accepts writes is reported by whoever needs a connection.
    await servers.check().catch(() => {});
    if (servers.generation !== this.#generation) {
      this.#generation = servers.generation;
      logger.warn({ server: servers.currentName }, 'another database server accepts writes now; moving to it');
      onMoved();
    }
    const splitBrains = servers.splitBrains;
    const seen = JSON.stringify(splitBrains);
    if (seen === this.#reported) return;
    this.#reported = seen;
    for (const fields of splitBrains) logger.error(fields, 'two database servers accept writes; one is not used');
    if (splitBrains.length === 0) logger.info('only one database server accepts writes again');
  }
}
