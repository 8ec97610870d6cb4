// Budgets: limits of usage by unit, and the usage itself.
import type { NewBudget } from './generated/api-options.ts';
import type { Budget, UsageDay } from './generated/api-types.ts';
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
    return (await this.#transport.request<Budget>('PUT', pathOf(name), options)).body;
  }

  /** Jobs that the budget holds stay held. */
  delete(name: string, call: CallOptions = {}): Promise<void> {
    return this.#transport.delete(pathOf(name), call);
  }

  /** Usage by unit, day and type. */
  async usage({ days, ...call }: { days?: number | undefined } & CallOptions = {}): Promise<UsageDay[]> {
    const path = `/api/stats/usage${days === undefined ? '' : `?days=${days}`}`;
    return (await this.#transport.request<{ usage: UsageDay[] }>('GET', path, { ...call, repeatable: true })).body
      .usage;
  }
}

function pathOf(name: string): string {
  return `/api/budgets/${encodeURIComponent(name)}`;
}
