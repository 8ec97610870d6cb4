// Checks whether notifications arrive: sends one through the pool and waits for it on the LISTEN connection. Behind a
// pooler in transaction mode, LISTEN succeeds and nothing arrives. A notification sent on the LISTEN connection itself
// would not detect this, because it returns together with the response.
import type { Logger } from '../../kernel/logger.ts';

/** The name in the payload. No slug has this form. */
export const deliveryCheck = '!check';
/** The text for the log and for /readyz. */
export const notDelivered =
  'notifications do not arrive on the LISTEN connection, so other daemons find new jobs only by polling; if DATABASE_URL ' +
  'goes through a pooler, set LISTEN_DATABASE_URL to an address of the server itself';

// A server under load delivers within milliseconds after the commit.
const timeoutMs = 3_000;
const repeatMs = 60_000;

export class DeliveryCheck {
  readonly #send: () => Promise<void>;
  readonly #logger: Logger;
  readonly #onMissing: () => void;
  #timer: NodeJS.Timeout | undefined;
  /** The check in progress. */
  #run: object | undefined;
  /** Undefined until the first check has ended. */
  #arrives: boolean | undefined;

  constructor(options: { send(): Promise<void>; onMissing(): void; logger: Logger }) {
    this.#send = options.send;
    this.#onMissing = options.onMissing;
    this.#logger = options.logger;
  }

  /** True if a check has ended without its notification. */
  get failed(): boolean {
    return this.#arrives === false;
  }

  start(): void {
    this.stop();
    const run = {};
    this.#run = run;
    // The time does not count until the notification is sent, because the pool may have to wait for the database.
    const sent = (next: () => void, ms: number) => {
      if (this.#run === run) this.#timer = setTimeout(next, ms);
    };
    void this.#send().then(
      () => sent(() => this.#missing(), timeoutMs),
      () => sent(() => this.start(), repeatMs),
    );
  }

  /** The notification of a check arrived. */
  arrived(): void {
    if (this.#arrives === false) this.#logger.info('notifications arrive again');
    this.#arrives = true;
    this.stop();
  }

  stop(): void {
    this.#run = undefined;
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #missing(): void {
    if (this.#arrives !== false) this.#logger.warn(notDelivered);
    this.#arrives = false;
    this.#onMissing();
    this.#timer = setTimeout(() => this.start(), repeatMs);
  }
}
