// A job's state in one mark: a shape and a word, so that the colour is never the only sign.
import type { Hold, HoldKind, Status } from '../../data/types.ts';

export type Tone = 'wait' | 'run' | 'hold' | 'fail' | 'done' | 'off';

const tones: Record<Status, Tone> = {
  PENDING: 'wait',
  QUEUED: 'wait',
  CLAIMED: 'run',
  PREPARING: 'run',
  LEASE_PENDING: 'run',
  RUNNING: 'run',
  WAITING: 'wait',
  PAUSED: 'hold',
  ERROR: 'fail',
  SUCCESS: 'done',
  PARTIAL: 'done',
  CANCELED: 'off',
};

const words: Record<Status, string> = {
  PENDING: 'Pending',
  QUEUED: 'Queued',
  CLAIMED: 'Claimed',
  PREPARING: 'Preparing',
  LEASE_PENDING: 'Lease pending',
  RUNNING: 'Running',
  WAITING: 'Waiting',
  PAUSED: 'Paused',
  ERROR: 'Error',
  SUCCESS: 'Success',
  PARTIAL: 'Partial',
  CANCELED: 'Canceled',
};

export function toneOf(status: Status): Tone {
  return tones[status];
}

export function wordOf(status: Status): string {
  return words[status];
}

export function StatusMark({ status, stopping = false }: { status: Status; stopping?: boolean }) {
  return (
    <span class={`status tone-${toneOf(status)}`}>
      <span class={`glyph glyph-${toneOf(status)}`} aria-hidden="true" />
      {words[status]}
      {stopping && <span class="muted"> · stopping</span>}
    </span>
  );
}

const holdWords: Record<HoldKind, string> = {
  user: 'Paused by a person',
  drain: 'Paused by a drain',
  budget: 'Budget spent',
  error: 'Failed',
  handler: 'Handler still running',
  dependency: 'A job before it was canceled',
};

export function holdWord(kind: HoldKind): string {
  return holdWords[kind];
}

/** `Paused by ann: waiting for a part`, in one line. */
export function holdSentence(hold: Hold): string {
  const by = hold.kind === 'user' && hold.author ? `Paused by ${hold.author}` : holdWords[hold.kind];
  return hold.reason ? `${by}: ${hold.reason}` : by;
}

export function Progress({ value, message }: { value: number | null; message?: string | null }) {
  if (value === null) return null;
  const percent = Math.max(0, Math.min(100, value));
  return (
    <div
      class="progress"
      role="progressbar"
      aria-valuenow={Math.round(percent)}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-label={message || 'Progress'}
    >
      <span style={{ width: `${percent}%` }} />
    </div>
  );
}
