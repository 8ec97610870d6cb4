// Rate and concurrency limits.
import type { NewLimit } from './generated/api-options.ts';
import type { Limit } from './generated/api-types.ts';
import { type CallOptions, type Transport, toBody } from './transport.ts';

export class Limits {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Lists all limits by name, with their current counts. */
  async list(call: CallOptions = {}): Promise<Limit[]> {
    const options = { ...call, repeatable: true };
    return (await this.#transport.request<{ limits: Limit[] }>('GET', '/api/limits', options)).body.limits;
  }

  get(name: string, call: CallOptions = {}): Promise<Limit> {
    return this.#send('GET', name, { ...call, repeatable: true });
  }

  /** Adds the limit, or replaces the one of this name. */
  set(name: string, limit: NewLimit, call: CallOptions = {}): Promise<Limit> {
    return this.#send('PUT', name, { ...call, body: toBody(limit), repeatable: true });
  }

  delete(name: string, call: CallOptions = {}): Promise<void> {
    return this.#transport.delete(pathOf(name), call);
  }

  async #send(method: string, name: string, options: Parameters<Transport['request']>[2]): Promise<Limit> {
    return (await this.#transport.request<Limit>(method, pathOf(name), options)).body;
  }
}

function pathOf(name: string): string {
  return `/api/limits/${encodeURIComponent(name)}`;
}
