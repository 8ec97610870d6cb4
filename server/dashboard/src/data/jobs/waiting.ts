// Describes the wait of a WAITING job in one line. Times are ISO text, which the page formats.

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
