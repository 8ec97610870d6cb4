// Polls all servers of a database: detects a primary that was demoted while connections to it stay open, and two
// servers that both accept writes.

import type { Logger } from '../../kernel/logger.ts';
import type { Service } from '../../kernel/service.ts';
import { Interval } from '../../kernel/service.ts';
import type { Servers } from './servers.ts';

export interface ServerMonitorOptions {
  servers: Servers;
  logger: Logger;
  /** Another server is used from now on: drop the connections to the previous one. */
  onServerChanged(): void;
  everyMs?: number;
}

export class ServerMonitor implements Service {
  readonly name = 'database-servers';
  readonly #options: ServerMonitorOptions;
  readonly #interval: Interval;
  #generation: number;
  #reported = '';

  constructor(options: ServerMonitorOptions) {
    this.#options = options;
    this.#generation = options.servers.generation;
    this.#interval = new Interval(this.name, options.everyMs ?? 5_000, () => this.check(), options.logger);
  }

  async start(): Promise<void> {
    // With one host there is nothing to poll.
    if (this.#options.servers.urls.length > 1) await this.#interval.start();
  }

  async stop(): Promise<void> {
    await this.#interval.stop();
  }

  async check(): Promise<void> {
    const { servers, logger, onServerChanged: onMoved } = this.#options;
    // If none accepts writes, the next connection attempt reports it.
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
