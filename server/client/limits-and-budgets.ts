// Rate and concurrency limits; budgets, which are limits of usage by unit, and the usage itself.
import type { NewBudget, NewLimit } from './generated/api-options.ts';
import type { Budget, Limit, UsageDay } from './generated/api-types.ts';
import { type CallOptions, type Transport, toBody } from './transport.ts';

export class Budgets {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Lists all budgets by name, with today's usage. */
  async list(call: CallOptions = {}): Promise<Budget[]> {
    const options = { ...call, repeatable: true };
    return (await this.#transport.request<{ budgets: Budget[] }>('GET', '/api/budgets', options)).body.budgets;
  }

  /** Adds the budget, or replaces the one of this name: a higher limit raises it. */
  async set(name: string, budget: NewBudget, call: CallOptions = {}): Promise<Budget> {
    const options = { ...call, body: toBody(budget), repeatable: true };
    return (await this.#transport.request<Budget>('PUT', budgetPath(name), options)).body;
  }

  /** Jobs that the budget holds stay held. */
  delete(name: string, call: CallOptions = {}): Promise<void> {
    return this.#transport.delete(budgetPath(name), call);
  }

  /** Usage by unit, day and type. */
  async usage({ days, ...call }: { days?: number | undefined } & CallOptions = {}): Promise<UsageDay[]> {
    const path = `/api/stats/usage${days === undefined ? '' : `?days=${days}`}`;
    return (await this.#transport.request<{ usage: UsageDay[] }>('GET', path, { ...call, repeatable: true })).body
      .usage;
  }
}

function budgetPath(name: string): string {
  return `/api/budgets/${encodeURIComponent(name)}`;
}

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
    return this.#transport.delete(limitPath(name), call);
  }

  async #send(method: string, name: string, options: Parameters<Transport['request']>[2]): Promise<Limit> {
    return (await this.#transport.request<Limit>(method, limitPath(name), options)).body;
  }
}

function limitPath(name: string): string {
  return `/api/limits/${encodeURIComponent(name)}`;
}
