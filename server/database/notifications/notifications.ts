// Wake-ups between daemons: one LISTEN connection each, one coalesced NOTIFY for all tenants. A wake-up is a hint:
// without it polling finds the work a little later.
import { randomBytes } from 'node:crypto';
import type pg from 'pg';
import { errorMessage } from '../../kernel/errors.ts';
import type { Logger } from '../../kernel/logger.ts';
import type { Service } from '../../kernel/service.ts';
import { keepAliveAfterMs } from '../connections/session-limits.ts';
import type { Queryable } from '../database.ts';
import { clientOf, Servers } from '../servers/servers.ts';
import { runQuery } from '../sql.ts';
import { DeliveryCheck, deliveryCheck, notDelivered } from './delivery-check.ts';

const wakeChannel = 'leasehold_wake';
/** Sent instead of a slug when tenants were created, changed or deleted. No slug has this form. */
export const tenantsChanged = '!tenants';
/** Sent instead of a slug when API keys were revoked or rotated. */
export const keysChanged = '!keys';
/** Sent by a daemon that starts to listen. */
const daemonJoined = '!daemon';
// A commit with a pending NOTIFY takes an instance-wide lock, so the wake-ups of this interval are sent together.
const coalesceMs = 15;
// Stream readers poll as well, so events can be announced less often.
const coalesceEventsMs = 200;
/** The prefix of a slug with new events and no new work. */
const eventsMark = '~';
/** The prefix of a slug whose PENDING jobs may be due. */
const dueMark = '+';
/** The prefix of a slug that received an event from outside. */
const receivedMark = '@';
// Postgres refuses payloads of 8000 bytes and more.
const maxPayloadBytes = 7500;

/** The payload of a NOTIFY within the transaction that enqueues. It names no daemon, so that all of them act on it. */
export function dueMessage(slug: string): string {
  return `-:${dueMark}${slug}`;
}

/** The payload of a NOTIFY within the transaction that stores an event from outside. */
export function receivedMessage(slug: string): string {
  return `-:${receivedMark}${slug}`;
}

/** Sends a payload of this file to all daemons. Within a transaction they get it after the commit. */
export async function sendNotification(db: Queryable, payload: string): Promise<void> {
  await runQuery(db, 'select pg_notify(:channel, :payload)', { channel: wakeChannel, payload });
}

type Listener = (tenant: string | undefined) => void;

export class Notifications implements Service {
  readonly name = 'notifications';
  #servers: Servers;
  #Client: typeof pg.Client;
  #db: Queryable;
  #logger: Logger;
  #sender = randomBytes(4).toString('hex');
  #listeners = new Set<Listener>();
  #client: pg.Client | undefined;
  #eventListeners = new Set<Listener>();
  #dueListeners = new Set<(slug: string) => void>();
  #receivedListeners = new Set<(slug: string) => void>();
  #pending = new Set<string>();
  #pendingEvents = new Set<string>();
  #sendTimer: NodeJS.Timeout | undefined;
  #sendEventsTimer: NodeJS.Timeout | undefined;
  #reconnectTimer: NodeJS.Timeout | undefined;
  #failures = 0;
  readonly #check: DeliveryCheck;
  #state: 'new' | 'started' | 'stopped' = 'new';
  /** False if this daemon is known to be the only one. */
  #hasPeers = true;
  #lostListeners = new Set<() => void>();
  #joinListeners = new Set<() => void>();

  constructor(options: { url: string; db: Queryable; logger: Logger }) {
    this.#servers = new Servers(options.url);
    this.#Client = clientOf(this.#servers);
    this.#db = options.db;
    this.#logger = options.logger;
    this.#check = new DeliveryCheck({
      logger: options.logger,
      send: async () => {
        await sendNotification(this.#db, `${this.#sender}:${deliveryCheck}`);
      },
      onMissing: () => {
        for (const listener of this.#lostListeners) listener();
      },
    });
  }

  /** Wake-ups arrive, so that polls may be less frequent. */
  get connected(): boolean {
    return this.#client !== undefined && !this.#check.failed;
  }

  /** Describes the problem for the operator; undefined while notifications arrive. */
  get problem(): string | undefined {
    return this.#check.failed ? notDelivered : undefined;
  }

  /** Sets whether other daemons are alive. Without them nothing is sent. */
  setPeers(hasPeers: boolean): void {
    this.#hasPeers = hasPeers;
  }

  /** Called when another daemon starts to listen. */
  onDaemonJoined(listener: () => void): void {
    this.#joinListeners.add(listener);
  }

  /** Called when wake-ups no longer arrive. */
  onLost(listener: () => void): void {
    this.#lostListeners.add(listener);
  }

  /** Called with a tenant's slug, or with undefined if wake-ups of any tenant may have been missed. */
  onWake(listener: Listener): void {
    this.#listeners.add(listener);
  }

  /** Notifies the other daemons that there may be work for the tenant. Never fails, never blocks. Needs no `start`. */
  notify(slug: string): void {
    // Without other daemons, the commit would only delay other transactions.
    if (this.#state === 'stopped' || !this.#hasPeers) return;
    this.#pending.add(slug);
    this.#sendTimer ??= setTimeout(() => void this.#send(), coalesceMs);
  }

  /** Called with the slug of a tenant whose PENDING jobs may be due; `onWake` is called as well. */
  onDue(listener: (slug: string) => void): void {
    this.#dueListeners.add(listener);
  }

  /** Called with the slug of a tenant that has received an event from outside in a transaction of another program. */
  onReceived(listener: (slug: string) => void): void {
    this.#receivedListeners.add(listener);
  }

  /** Called like `onWake`, if the tenant has new events and nothing to claim. */
  onEvents(listener: Listener): void {
    this.#eventListeners.add(listener);
  }

  /** Notifies the other daemons that the tenant has new events. */
  notifyEvents(slug: string): void {
    if (this.#state === 'stopped' || !this.#hasPeers) return;
    this.#pendingEvents.add(slug);
    this.#sendEventsTimer ??= setTimeout(() => void this.#sendEvents(), coalesceEventsMs);
  }

  async start(): Promise<void> {
    if (this.#state === 'started') return;
    this.#state = 'started';
    await this.#connect();
  }

  async stop(): Promise<void> {
    this.#state = 'stopped';
    clearTimeout(this.#reconnectTimer);
    this.#check.stop();
    // Other daemons run the jobs that a drain requeued.
    await this.#send();
    await this.#sendEvents();
    const client = this.#client;
    this.#client = undefined;
    await client?.end().catch(() => {});
  }

  /** Reconnects to the current server. */
  reconnect(): void {
    void this.#client?.end().catch(() => {});
  }

  async #send(): Promise<void> {
    clearTimeout(this.#sendTimer);
    this.#sendTimer = undefined;
    const slugs = [...this.#pending];
    this.#pending.clear();
    // A wake-up for work covers events too.
    for (const slug of slugs) this.#pendingEvents.delete(slug);
    await this.#publish(slugs, '*');
  }

  async #sendEvents(): Promise<void> {
    clearTimeout(this.#sendEventsTimer);
    this.#sendEventsTimer = undefined;
    const slugs = [...this.#pendingEvents];
    this.#pendingEvents.clear();
    await this.#publish(
      slugs.map((slug) => eventsMark + slug),
      `${eventsMark}*`,
    );
  }

  /** `all` replaces a list of names that is too long. */
  async #publish(names: string[], all: string): Promise<void> {
    if (names.length === 0) return;
    const joined = names.join(',');
    const payload = `${this.#sender}:${joined.length > maxPayloadBytes ? all : joined}`;
    try {
      await sendNotification(this.#db, payload);
    } catch (error) {
      this.#logger.debug({ err: error }, 'wake-up was not sent');
    }
  }

  async #connect(): Promise<void> {
    const client = new this.#Client({
      connectionString: this.#servers.url,
      keepAlive: true,
      keepAliveInitialDelayMillis: keepAliveAfterMs,
      application_name: 'leasehold-listen',
    });
    client.on('notification', (message) => this.#receive(message.payload ?? ''));
    client.on('error', () => {});
    client.on('end', () => this.#lost(client));
    try {
      await client.connect();
      // Both values are our own constants and need no quoting.
      await client.query(`listen ${wakeChannel}; notify ${wakeChannel}, '${this.#sender}:${daemonJoined}'`);
      if (this.#state === 'stopped') return await client.end();
      this.#client = client;
      this.#check.start();
      // Notifications sent meanwhile are lost, so every tenant is woken.
      if (this.#failures > 0) {
        this.#logger.info({ failures: this.#failures }, 'listening for wake-ups again');
        this.#wake(undefined);
      }
      this.#failures = 0;
    } catch (error) {
      // Logged once per outage: retries follow every few seconds.
      if (this.#failures <= 1)
        this.#logger.warn({ reason: errorMessage(error) }, 'cannot listen for wake-ups; polling continues');
      await client.end().catch(() => {});
      this.#lost(client);
    }
  }

  #lost(client: pg.Client): void {
    if (this.#state === 'stopped' || (this.#client !== undefined && this.#client !== client)) return;
    this.#client = undefined;
    this.#check.stop();
    this.#servers.suspect();
    if (this.#reconnectTimer !== undefined) return;
    if (this.#failures === 0) for (const listener of this.#lostListeners) listener();
    this.#failures += 1;
    const delay = Math.min(250 * 2 ** Math.min(this.#failures, 6), 10_000) * (0.5 + Math.random() / 2);
    this.#reconnectTimer = setTimeout(() => {
      this.#reconnectTimer = undefined;
      void this.#connect();
    }, delay);
  }

  #receive(payload: string): void {
    const [sender, slugs = ''] = payload.split(':', 2);
    if (sender === this.#sender) {
      if (slugs === deliveryCheck) this.#check.arrived();
      return;
    }
    for (const name of slugs.split(',')) {
      if (name === daemonJoined) {
        this.#hasPeers = true;
        for (const listener of this.#joinListeners) listener();
        continue;
      }
      if (name.startsWith(receivedMark)) {
        for (const listener of this.#receivedListeners) listener(name.slice(1));
        continue;
      }
      const isEvents = name.startsWith(eventsMark);
      const isDue = name.startsWith(dueMark);
      const slug = isEvents || isDue ? name.slice(1) : name;
      if (isDue) for (const listener of this.#dueListeners) listener(slug);
      const listeners = isEvents ? this.#eventListeners : this.#listeners;
      for (const listener of listeners) listener(slug === '*' ? undefined : slug);
    }
  }

  #wake(slug: string | undefined): void {
    for (const listener of this.#listeners) listener(slug);
  }
}
