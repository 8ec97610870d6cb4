// A job's history as bars on one time axis: its states, its attempts with their leases, its phases.
import type { Job, LiveEvent, Status } from '../types.ts';

interface Bar {
  from: number;
  /** Undefined while it is still going on. */
  to: number | undefined;
  label: string;
  tone: string;
}

export interface TimelineRow {
  name: string;
  detail?: string | undefined;
  bars: Bar[];
  marks: { at: number; label: string; tone: string }[];
}

export interface Timeline {
  from: number;
  to: number;
  rows: TimelineRow[];
}

const stateTones: Record<Status, string> = {
  PENDING: 'wait',
  WAITING: 'wait',
  QUEUED: 'wait',
  CLAIMED: 'run',
  PREPARING: 'run',
  LEASE_PENDING: 'run',
  RUNNING: 'run',
  PAUSED: 'hold',
  ERROR: 'fail',
  SUCCESS: 'done',
  PARTIAL: 'done',
  CANCELED: 'off',
};

const final: readonly (Status | null)[] = ['SUCCESS', 'PARTIAL', 'CANCELED'];

export function timelineOf(job: Job, events: readonly LiveEvent[], now: number): Timeline {
  const from = ms(events[0]?.at ?? job.created_at);
  const ended = final.includes(job.status) ? ms(job.finished_at ?? job.updated_at) : now;
  const rows = [statesRow(events), ...attemptRows(events)];
  const to = Math.max(ended, from + 1, ...rows.flatMap((row) => row.bars.map((bar) => bar.to ?? ended)));
  return { from, to, rows };
}

function statesRow(events: readonly LiveEvent[]): TimelineRow {
  const bars: Bar[] = [];
  const marks: TimelineRow['marks'] = [];
  let open: { status: Status; at: number } | undefined;
  const close = (at: number) => {
    if (open === undefined || final.includes(open.status)) return;
    bars.push({ from: open.at, to: at, label: open.status, tone: stateTones[open.status] });
  };
  for (const event of events) {
    if (event.to === null || event.to === open?.status) continue;
    close(ms(event.at));
    open = { status: event.to, at: ms(event.at) };
    if (final.includes(event.to)) marks.push({ at: ms(event.at), label: event.to, tone: stateTones[event.to] });
  }
  if (open !== undefined && !final.includes(open.status)) {
    bars.push({ from: open.at, to: undefined, label: open.status, tone: stateTones[open.status] });
  }
  return { name: 'State', bars, marks };
}

const outcomes: Record<string, string> = {
  'job.completed': 'done',
  'job.partial': 'done',
  'job.failed': 'fail',
  'job.retrying': 'fail',
  'job.lease_expired': 'fail',
  'job.paused': 'hold',
  'job.canceled': 'off',
  'job.requeued': 'wait',
  'job.waiting': 'wait',
  'job.waiting_aside': 'wait',
};

function attemptRows(events: readonly LiveEvent[]): TimelineRow[] {
  const rows: TimelineRow[] = [];
  let attempt: { row: TimelineRow; bar: Bar; phases: Map<string, TimelineRow> } | undefined;
  const end = (event: LiveEvent, tone: string) => {
    if (attempt === undefined) return;
    attempt.bar.to = ms(event.at);
    attempt.bar.tone = tone;
    attempt.bar.label = `${attempt.bar.label}: ${event.type.replace('job.', '')}`;
    for (const phase of attempt.phases.values()) {
      for (const bar of phase.bars) bar.to ??= ms(event.at);
    }
    attempt = undefined;
  };
  for (const event of events) {
    if (event.to === 'RUNNING' && event.from !== 'RUNNING') {
      const bar: Bar = { from: ms(event.at), to: undefined, label: `Attempt ${event.attempt ?? ''}`, tone: 'run' };
      const row: TimelineRow = {
        name: `Attempt ${event.attempt ?? ''}`,
        detail: ownerOf(event),
        bars: [bar],
        marks: [],
      };
      rows.push(row);
      attempt = { row, bar, phases: new Map() };
      continue;
    }
    if (attempt === undefined) continue;
    const tone = outcomes[event.type];
    if (tone !== undefined && event.from === 'RUNNING' && event.to !== 'RUNNING') end(event, tone);
    else addPhase(rows, attempt, event);
  }
  return rows;
}

function addPhase(
  rows: TimelineRow[],
  attempt: { row: TimelineRow; phases: Map<string, TimelineRow> },
  event: LiveEvent,
): void {
  const name = typeof event.data?.phase === 'string' ? event.data.phase : undefined;
  if (event.type === 'job.phase_started' && name !== undefined) {
    const row: TimelineRow = {
      name,
      detail: 'phase',
      bars: [{ from: ms(event.at), to: undefined, label: name, tone: 'run' }],
      marks: [],
    };
    attempt.phases.set(name, row);
    rows.push(row);
    return;
  }
  if (name !== undefined && /phase_(completed|partial|failed|skipped)/.test(event.type)) {
    const bar = attempt.phases.get(name)?.bars[0];
    if (bar === undefined) return;
    bar.to = ms(event.at);
    bar.tone = event.type.endsWith('failed') ? 'fail' : event.type.endsWith('skipped') ? 'off' : 'done';
    return;
  }
  if (/cancel_requested|pause_requested|handler_unresponsive|lease_lost/.test(event.type)) {
    attempt.row.marks.push({ at: ms(event.at), label: event.type.replace('job.', ''), tone: 'hold' });
  }
}

function ownerOf(event: LiveEvent): string {
  return event.actor.replace(/^worker:/, '');
}

function ms(at: string): number {
  return Date.parse(at);
}
