// The frames of a live stream (server-sent events), and batches of them for many readers: each event is formatted once,
// and indexed by job and target so that readers do not filter every event.
import { type Event, eventToApi } from '../log/event.ts';
import type { Snapshot } from '../log/position.ts';
import { type StreamOwner, streamIdsWithin } from './stream-id.ts';

/** Events whose name in streams is not just the type with a colon for the dot. */
const names: Record<string, string> = {
  'job.canceled': 'job:cancelled',
  'job.phase_started': 'job:phase:started',
  'job.phase_completed': 'job:phase:completed',
  'job.phase_failed': 'job:phase:failed',
  'job.phase_skipped': 'job:phase:skipped',
  'job.step_completed': 'job:step:completed',
  'job.step_failed': 'job:step:failed',
  'job.webhook_delivered': 'job:webhook:delivered',
  'job.webhook_failed': 'job:webhook:failed',
};

function streamName(type: string): string {
  return names[type] ?? type.replaceAll('.', ':');
}

function eventFrame(id: string, event: Event): string {
  return frame(streamName(event.type), eventToApi(event), id);
}

export type ResetReason = 'unknown_id' | 'history_gone' | 'too_far_behind';
export type ClosedReason = 'shutdown' | 'key_revoked';

export function resetFrame(reason: ResetReason, id: string): string {
  return frame('reset', { reason }, id);
}

export function closedFrame(reason: ClosedReason): string {
  return frame('closed', { reason });
}

export function pingFrame(id: string, at: string): string {
  return frame('ping', { at }, id);
}

export function snapshotFrame(id: string, snapshot: object): string {
  return frame('snapshot', snapshot, id);
}

// JSON has no line breaks of its own, which would end the field.
function frame(name: string, data: object, id?: string): string {
  return `${id === undefined ? '' : `id: ${id}\n`}event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

export interface StreamFilter {
  jobId?: string | undefined;
  targetId?: string | undefined;
}

interface Framed {
  event: Event;
  frame: string;
}

export class StreamBatch {
  /** Shared by all readers without a filter, so that it is in memory once. */
  readonly whole: Buffer;
  #framed: readonly Framed[] | undefined;
  #byJob: Map<string, Framed[]> | undefined;
  #byTarget: Map<string, Framed[]> | undefined;

  private constructor(whole: string, framed?: readonly Framed[]) {
    this.whole = Buffer.from(whole);
    this.#framed = framed;
  }

  /** Events in order of seq, all of them visible in `until` and not in `seen`. */
  static ofEvents(owner: StreamOwner, seen: Snapshot, until: Snapshot, events: readonly Event[]): StreamBatch {
    const idOf = streamIdsWithin(owner, seen, until);
    const framed = events.map((event) => ({ event, frame: eventFrame(idOf(event.seq), event) }));
    return new StreamBatch(framed.map(({ frame }) => frame).join(''), framed);
  }

  /** A frame for every reader, whatever its filter: a ping, a reset. */
  static toAll(frame: string): StreamBatch {
    return new StreamBatch(frame);
  }

  select({ jobId, targetId }: StreamFilter): Buffer | string {
    if (!this.#framed || (jobId === undefined && targetId === undefined)) return this.whole;
    let found: readonly Framed[];
    if (jobId !== undefined) {
      this.#byJob ??= groupBy(this.#framed, (event) => event.jobId);
      found = this.#byJob.get(jobId) ?? [];
    } else {
      this.#byTarget ??= groupBy(this.#framed, (event) => event.targetId);
      found = this.#byTarget.get(targetId as string) ?? [];
    }
    if (jobId !== undefined && targetId !== undefined) found = found.filter(({ event }) => event.targetId === targetId);
    return found.map(({ frame }) => frame).join('');
  }
}

function groupBy(framed: readonly Framed[], keyOf: (event: Event) => string | null): Map<string, Framed[]> {
  const groups = new Map<string, Framed[]>();
  for (const one of framed) {
    const key = keyOf(one.event);
    if (key === null) continue;
    const group = groups.get(key);
    if (group) group.push(one);
    else groups.set(key, [one]);
  }
  return groups;
}
