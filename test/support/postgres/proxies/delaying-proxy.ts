// A TCP proxy in front of the database that delivers late: requests after their client gave them up, and answers after
// their lease expired. It can also refuse every connection.
import { setImmediate as immediate } from 'node:timers/promises';
import { expect } from 'vitest';
import { eventually } from '../../eventually.ts';
import type { TenantContext } from '../database.ts';
import { startDatabaseProxy } from './database-proxy.ts';

export interface DelayingProxy {
  /** The database's URL through the proxy. */
  url: string;
  /** Keeps the requests of a connection, from the first that contains `text` on. Its client may go; the server waits. */
  holdRequests(text: string): void;
  /** Cuts the connections of clients as soon as a request is kept: its sender gives it up. */
  cutWhenHeld(): Promise<void>;
  /** Delivers the kept requests. Resolves when the server has handled all of them and has closed the connection. */
  deliverRequests(): Promise<void>;
  /** Keeps the answers of all requests from now on. */
  holdAnswers(): void;
  /** Resolves when a connection waits for its answer. */
  answerHeld(): Promise<void>;
  deliverAnswers(): void;
  /** Cuts every connection and refuses new ones, until `accept`. */
  refuse(): void;
  accept(): void;
}

export async function startDelayingProxy(
  context: Pick<TenantContext, 'db' | 'schema' | 'url'>,
): Promise<DelayingProxy> {
  const { proxy, url } = await startDatabaseProxy(context);
  return {
    url,
    holdRequests: (text) => proxy.treat(text, 'holdRequest', Number.POSITIVE_INFINITY),
    cutWhenHeld: async () => {
      await eventually(() => expect(proxy.held).toBeGreaterThan(0));
      // The messages that the client sent together with it have arrived.
      await immediate();
      proxy.cutClients();
    },
    deliverRequests: async () => {
      if (proxy.held === 0) throw new Error('no request was held');
      await proxy.deliver();
    },
    holdAnswers: () => proxy.treat(/^/, 'holdAnswer', Number.POSITIVE_INFINITY),
    answerHeld: () => eventually(() => expect(proxy.held).toBeGreaterThan(0)),
    deliverAnswers: () => void proxy.deliver(),
    refuse: () => proxy.refuse(),
    accept: () => void proxy.heal(),
  };
}
