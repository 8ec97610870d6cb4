// The column `waiting`: the reason for which a job is WAITING. Such a job has no slot, lease or connection.

export const waitKinds = ['sleep', 'event', 'question', 'children', 'after', 'turn'] as const;
export type WaitKind = (typeof waitKinds)[number];

/**
 * The `run_at` of a job that has no time to wake. It is not infinity, because older servers cannot subtract from
 * infinity.
 */
export const never = '9999-12-31T00:00:00.000Z';
const neverMs = Date.parse(never);
/** The same as a duration for a timer. */
export const foreverMs = Number.MAX_SAFE_INTEGER;

export interface Waiting {
  /**
   * `after`: the job waits for the jobs it runs after. `turn`: the job is a child that its parent's call starts later.
   */
  kind: WaitKind;
  /** The durable call that waits. For the kind `turn` it is the call of the parent. */
  step?: string | undefined;
  /** The time at which the job wakes; absent if only something else wakes it. */
  until?: string | undefined;
  /** The event from outside that ends the wait, and the values that its data must contain. */
  event?: string | undefined;
  match?: Record<string, unknown> | undefined;
  /** The question that a person has to answer. */
  question?: string | undefined;
  /** The job left its lane until it wakes. */
  lane?: 'released' | undefined;
  /** The total number of children or jobs that it waits for. */
  jobs?: number | undefined;
  /** For the kind `after`: the job is not queued before this time. */
  not_before?: string | undefined;
}

/** A wait with values that are read from other rows. */
export interface NamedWaiting extends Waiting {
  /** The title of the question. */
  title?: string | undefined;
  /** The number of its `jobs` that have not ended. */
  unfinished?: number | undefined;
}

/** Durable calls that an answer or an event ends. If one has ended before the job waits, the job wakes at once. */
export interface AwaitedCalls {
  steps: readonly string[];
  /** The end of the first wait of the run, whatever its kind. */
  until?: string | undefined;
}

/** Returns null instead of the time that stands for never. */
export function unlessNever(time: string): string | null {
  return Date.parse(time) === neverMs ? null : time;
}

/** True if the job waits for other jobs, not for a time or a person. */
export function waitsForJobs({ kind }: Waiting): boolean {
  return kind === 'children' || kind === 'after' || kind === 'turn';
}

/** Returns text such as `sleeps until 2026-01-02T03:04:05Z`. */
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

/** Returns text such as `3 of `, or nothing if all or only one is meant. */
function partOf(jobs: number, unfinished = jobs): string {
  return jobs <= 1 || unfinished === jobs ? '' : `${unfinished.toLocaleString('en')} of `;
}

function count(number: number, one: string, many: string): string {
  return number === 1 ? `one ${one}` : `${number.toLocaleString('en')} ${many}`;
}
