// Bulk operations: one action on all jobs that match a filter, with a count before it and progress during it.
import type { BulkFilter } from './generated/api-options.ts';
import type { Operation, OperationPreview } from './generated/api-types.ts';
import type { ActionOptions } from './jobs.ts';
import { type List, listAt } from './pages.ts';
import { type CallOptions, sleep, type Transport, toBody } from './transport.ts';

export type BulkAction = Operation['action'];

const pollMs = { first: 100, max: 2000 };

export class Operations {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Counts the jobs that the operation would change, and changes nothing. */
  async preview(action: BulkAction, filter: BulkFilter, call: CallOptions = {}): Promise<OperationPreview> {
    const body = { action, filter: toBody(filter), dry_run: true };
    const options = { ...call, body, repeatable: true };
    return (await this.#transport.request<OperationPreview>('POST', '/api/operations', options)).body;
  }

  /** Begins the operation. Not repeated after a lost answer: `list` shows whether it began. */
  async start(action: BulkAction, filter: BulkFilter, options: ActionOptions = {}): Promise<Operation> {
    const { signal, timeoutMs, retryForMs, ...audit } = options;
    const body = { action, filter: toBody(filter), ...toBody(audit) };
    const call = { signal, timeoutMs, retryForMs, body };
    return (await this.#transport.request<Operation>('POST', '/api/operations', call)).body;
  }

  async get(id: string, call: CallOptions = {}): Promise<Operation> {
    const path = `/api/operations/${encodeURIComponent(id)}`;
    return (await this.#transport.request<Operation>('GET', path, { ...call, repeatable: true })).body;
  }

  /** Newest first. */
  list(options: { limit?: number | undefined } & CallOptions = {}): List<Operation> {
    const { limit, ...call } = options;
    return listAt(this.#transport, '/api/operations', 'operations', { limit }, call);
  }

  /** Yields its state from now until it has ended, after each change. */
  async *watch(id: string, call: CallOptions = {}): AsyncGenerator<Operation, void, undefined> {
    let shown = '';
    for (let polls = 0; ; polls++) {
      const operation = await this.get(id, call);
      const state = JSON.stringify(operation);
      if (state !== shown) yield operation;
      shown = state;
      if (operation.status !== 'running') return;
      await sleep(Math.min(pollMs.max, pollMs.first * 1.5 ** polls), call.signal);
    }
  }

  async wait(id: string, call: CallOptions = {}): Promise<Operation> {
    let last: Operation | undefined;
    for await (const operation of this.watch(id, call)) last = operation;
    return last ?? this.get(id, call);
  }
}
