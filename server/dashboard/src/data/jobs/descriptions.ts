// One line of text for the wait of a WAITING job, and for an event of a history. Times are ISO text, which the page
// formats.

export interface Waiting {
  kind: 'sleep' | 'event' | 'question' | 'children' | 'after' | 'turn';
  step?: string;
  until?: string;
  event?: string;
  question?: string;
  jobs?: number;
  not_before?: string;
  /** The title of the question, and how many of `jobs` have not ended; not in events. */
  title?: string;
  unfinished?: number;
}

export function describeWaiting(waiting: Waiting): string {
  const { kind, until, event, jobs = 0, not_before: notBefore, title, unfinished = jobs } = waiting;
  const part = unfinished === jobs ? '' : `${count(unfinished)} of `;
  switch (kind) {
    case 'children':
      return jobs === 1 ? 'waits for its child' : `waits for ${part}its ${count(jobs)} children`;
    case 'after':
      return `runs after ${jobs === 1 ? 'another job' : `${part}${count(jobs)} other jobs`}${ending('at the earliest', notBefore)}`;
    case 'turn':
      return 'waits for its turn among the children of its parent';
    case 'question':
      return `waits for an answer${ending('due', until)}${title === undefined ? '' : `: "${title}"`}`;
    case 'event':
      return `waits for the event "${event}"${ending('gives up', until)}`;
    case 'sleep':
      return `sleeps${ending('wakes', until)}`;
  }
}

function ending(name: string, at: string | undefined): string {
  return at === undefined ? '' : `, ${name} ${at}`;
}

function count(jobs: number): string {
  return jobs.toLocaleString('en-US');
}

/** `job.step_completed` of `charge` → `Step completed: charge`. */
export function describeEvent({ type, data }: { type: string; data: Record<string, unknown> | null }): string {
  const words = type.replace(/^job\./, '').replaceAll(/[._]/g, ' ');
  const text = words.charAt(0).toUpperCase() + words.slice(1);
  const about = subjectOf(type, data ?? {});
  return about === undefined ? text : `${text}: ${about}`;
}

function subjectOf(type: string, data: Record<string, unknown>): string | undefined {
  if (type === 'job.waiting') return describeWaiting(data as unknown as Waiting);
  const { title } = (data.question ?? {}) as { title?: unknown };
  const subject = data.phase ?? data.event ?? data.step ?? title;
  return typeof subject === 'string' ? subject : undefined;
}
