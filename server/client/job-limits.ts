// Rate and concurrency limits.
import type { NewLimit } from './api-options.ts';
import type { Limit } from './api-types.ts';
import { ProblemError } from './client-errors.ts';
import { type CallOptions, type Transport, toBody } from './transport.ts';

export class Limits {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** All of them, by name, with what they count now. */
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

  async delete(name: string, call: CallOptions = {}): Promise<void> {
    try {
      await this.#transport.request('DELETE', pathOf(name), { ...call, repeatable: true });
    } catch (error) {
      // An earlier attempt, whose answer was lost, has deleted it.
      if (!(error instanceof ProblemError && error.status === 404 && error.attempts > 1)) throw error;
    }
  }

  async #send(method: string, name: string, options: Parameters<Transport['request']>[2]): Promise<Limit> {
    return (await this.#transport.request<Limit>(method, pathOf(name), options)).body;
  }
}

function pathOf(name: string): string {
  return `/api/limits/${encodeURIComponent(name)}`;
}
