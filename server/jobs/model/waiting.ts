// What a WAITING job waits for: the column `waiting`. It has no slot, lease or connection meanwhile.

export const waitKinds = ['sleep', 'event', 'question', 'children', 'after', 'turn'] as const;
export type WaitKind = (typeof waitKinds)[number];

/** The `run_at` of a job that no time wakes. Not infinity, which older servers cannot subtract from. */
export const never = '9999-12-31T00:00:00.000Z';
const neverMs = Date.parse(never);
/** How long that is for a timer. */
export const foreverMs = Number.MAX_SAFE_INTEGER;

export interface Waiting {
  /** `after`: for the jobs it runs after. `turn`: a child that its parent's call lets run later. */
  kind: WaitKind;
  /** The durable call that waits; of kind `turn` that of the parent. */
  step?: string | undefined;
  /** When the job wakes by itself; without it no time wakes the job. */
  until?: string | undefined;
  /** The event from outside that ends the wait, and what its data must contain. */
  event?: string | undefined;
  match?: Record<string, unknown> | undefined;
  /** The question that a person has to answer. */
  question?: string | undefined;
  /** The job left its lane until it wakes. */
  lane?: 'released' | undefined;
  /** How many children or jobs it waits for in all. */
  jobs?: number | undefined;
  /** Of kind `after`: it is not queued before this time. */
  not_before?: string | undefined;
}

/** With values that are read from other rows. */
export interface NamedWaiting extends Waiting {
  /** Of the question. */
  title?: string | undefined;
  /** How many of its `jobs` have not ended. */
  unfinished?: number | undefined;
}

/** Durable calls that others end, with an answer or an event. If one has ended before the job waits, the job wakes at once. */
export interface AwaitedCalls {
  steps: readonly string[];
  /** The end of the first wait of the run, whatever it waits for. */
  until?: string | undefined;
}

/** For callers: null instead of the time that stands for never. */
export function unlessNever(time: string): string | null {
  return Date.parse(time) === neverMs ? null : time;
}

/** It waits for other jobs, not for a time or a person. */
export function waitsForJobs({ kind }: Waiting): boolean {
  return kind === 'children' || kind === 'after' || kind === 'turn';
}

/** `sleeps until 2026-01-02T03:04:05Z`, for people. */
export function describeWaiting(waiting: NamedWaiting): string {
  const { kind, step, until, event, match, jobs = 0, title, unfinished } = waiting;
  switch (kind) {
    case 'children':
      return `waits in "${step}" for ${partOf(jobs, unfinished)}its ${count(jobs, 'child', 'children')}`;
    case 'after':
      return `runs after ${partOf(jobs, unfinished)}${count(jobs, 'other job', 'other jobs')}`;
    case 'turn':
      return `waits for its turn: the call "${step}" of its parent limits how many children are unfinished`;
    case 'question':
      return `waits for a person to answer ${title === undefined ? 'the question' : `"${title}"`}, asked in "${step}", until ${until}`;
    case 'event': {
      const wanted = match === undefined ? '' : ` with ${JSON.stringify(match)}`;
      const end = until === undefined ? 'without a time limit' : `until ${until}`;
      return `waits in "${step}" for the event "${event}"${wanted} ${end}`;
    }
    default:
      return `sleeps in "${step}" until ${until}`;
  }
}

/** `3 of `; nothing where all of them or one is meant. */
function partOf(jobs: number, unfinished = jobs): string {
  return jobs <= 1 || unfinished === jobs ? '' : `${unfinished.toLocaleString('en')} of `;
}

function count(number: number, one: string, many: string): string {
  return number === 1 ? `one ${one}` : `${number.toLocaleString('en')} ${many}`;
}
