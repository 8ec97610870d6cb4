// Targets and their lanes.
import type { LaneListOptions, TargetListOptions } from './generated/api-options.ts';
import type { Lane, Target, TargetLane } from './generated/api-types.ts';
import type { ActionOptions } from './jobs.ts';
import { type List, listAt } from './pages.ts';
import { type CallOptions, type Transport, toBody } from './transport.ts';

export class Targets {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  get(targetId: string, call: CallOptions = {}): Promise<TargetLane> {
    return this.#send('GET', pathOf(targetId), call);
  }

  /** Lists targets by id, each with the head of its lane. */
  list(options: TargetListOptions & CallOptions = {}): List<Target> {
    const { signal, timeoutMs, retryForMs, ...filter } = options;
    return listAt(this.#transport, '/api/targets', 'targets', filter, { signal, timeoutMs, retryForMs });
  }

  /** Lists lanes by target, each with its head, its progress and the next jobs in line. */
  lanes(options: LaneListOptions & CallOptions = {}): List<Lane> {
    const { signal, timeoutMs, retryForMs, ...filter } = options;
    return listAt(this.#transport, '/api/lanes', 'lanes', filter, { signal, timeoutMs, retryForMs });
  }

  /** Running jobs continue, and no job starts. */
  pause(targetId: string, options: ActionOptions & { until?: string | Date | undefined } = {}): Promise<TargetLane> {
    const { signal, timeoutMs, retryForMs, ...body } = options;
    return this.#send('POST', `${pathOf(targetId)}/pause`, { signal, timeoutMs, retryForMs }, toBody(body));
  }

  resume(targetId: string, options: ActionOptions = {}): Promise<TargetLane> {
    const { signal, timeoutMs, retryForMs, ...body } = options;
    return this.#send('POST', `${pathOf(targetId)}/resume`, { signal, timeoutMs, retryForMs }, toBody(body));
  }

  /** Replaces all labels; creates the target if it does not exist. */
  setLabels(targetId: string, labels: Record<string, string>, call: CallOptions = {}): Promise<TargetLane> {
    return this.#send('PUT', pathOf(targetId), call, { labels });
  }

  /** Changes the labels that are named; null removes one. */
  changeLabels(targetId: string, labels: Record<string, string | null>, call: CallOptions = {}): Promise<TargetLane> {
    return this.#send('PATCH', pathOf(targetId), call, { labels });
  }

  /** These requests set a state, so sending one twice has no additional effect. */
  async #send(method: string, path: string, call: CallOptions, body?: object): Promise<TargetLane> {
    return (await this.#transport.request<TargetLane>(method, path, { ...call, body, repeatable: true })).body;
  }
}

function pathOf(targetId: string): string {
  return `/api/targets/${encodeURIComponent(targetId)}`;
}
