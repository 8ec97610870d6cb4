// What a WAITING job waits for, in one line. Times are ISO text, which the page shows as people say them.
import type { Waiting } from '../types.ts';

export function describeWaiting({ kind, until, event, jobs = 0, not_before: notBefore }: Waiting): string {
  switch (kind) {
    case 'children':
      return jobs === 1 ? 'waits for its child' : `waits for its ${count(jobs)} children`;
    case 'after':
      return `runs after ${jobs === 1 ? 'another job' : `${count(jobs)} other jobs`}${ending('at the earliest', notBefore)}`;
    case 'turn':
      return 'waits for its turn among the children of its parent';
    case 'question':
      return `waits for an answer${ending('due', until)}`;
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
