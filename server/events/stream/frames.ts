// The frames of a live stream: server-sent events. An event is formatted once, however many readers get it.
import { type Event, eventToApi } from '../log/event.ts';

/** Events whose name in streams is not just the type with a colon for the dot. */
const names: Record<string, string> = {
  'job.canceled': 'job:cancelled',
  'job.phase_started': 'job:phase:started',
  'job.phase_completed': 'job:phase:completed',
  'job.phase_failed': 'job:phase:failed',
  'job.phase_skipped': 'job:phase:skipped',
  'job.webhook_delivered': 'job:webhook:delivered',
  'job.webhook_failed': 'job:webhook:failed',
};

function streamName(type: string): string {
  return names[type] ?? type.replaceAll('.', ':');
}

export function eventFrame(id: string, event: Event): string {
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
