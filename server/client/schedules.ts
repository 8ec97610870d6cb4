// Schedules: jobs that are enqueued at given times.
import type { NewSchedule, ScheduleChanges } from './generated/api-options.ts';
import type { Job, Schedule } from './generated/api-types.ts';
import { type List, listAt } from './pages.ts';
import { type CallOptions, type Transport, toBody } from './transport.ts';

export class Schedules {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  get(id: string, call: CallOptions = {}): Promise<Schedule> {
    return this.#send('GET', pathOf(id), { ...call, repeatable: true });
  }

  /** Lists schedules by name. */
  list(options: { limit?: number | undefined } & CallOptions = {}): List<Schedule> {
    const { limit, ...call } = options;
    return listAt(this.#transport, '/api/schedules', 'schedules', { limit }, call);
  }

  /** Not repeated after a lost answer; read the list in that case. */
  create(schedule: NewSchedule, call: CallOptions = {}): Promise<Schedule> {
    return this.#send('POST', '/api/schedules', { ...call, body: toBody(schedule) });
  }

  update(id: string, changes: ScheduleChanges, call: CallOptions = {}): Promise<Schedule> {
    return this.#send('PATCH', pathOf(id), { ...call, body: toBody(changes), repeatable: true });
  }

  delete(id: string, call: CallOptions = {}): Promise<void> {
    return this.#transport.delete(pathOf(id), call);
  }

  pause(id: string, call: CallOptions = {}): Promise<Schedule> {
    return this.#send('POST', `${pathOf(id)}/pause`, { ...call, repeatable: true });
  }

  resume(id: string, call: CallOptions = {}): Promise<Schedule> {
    return this.#send('POST', `${pathOf(id)}/resume`, { ...call, repeatable: true });
  }

  /** Enqueues its job now, in addition to its times. Not repeated after a lost answer. */
  async run(id: string, call: CallOptions = {}): Promise<{ schedule: Schedule; job: Job }> {
    return (await this.#transport.request<{ schedule: Schedule; job: Job }>('POST', `${pathOf(id)}/run`, call)).body;
  }

  /** Returns the next five times of a cron expression. */
  async preview(cron: string, timezone = 'UTC', call: CallOptions = {}): Promise<string[]> {
    const options = { ...call, body: { cron, timezone }, repeatable: true };
    const { body } = await this.#transport.request<{ next_runs: string[] }>('POST', '/api/schedules/preview', options);
    return body.next_runs;
  }

  async #send(method: string, path: string, options: Parameters<Transport['request']>[2]): Promise<Schedule> {
    return (await this.#transport.request<Schedule>(method, path, options)).body;
  }
}

function pathOf(id: string): string {
  return `/api/schedules/${encodeURIComponent(id)}`;
}
