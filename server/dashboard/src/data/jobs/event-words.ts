// One event of a job's history, in words.
import type { LiveEvent } from '../types.ts';
import { describeWaiting, type Waiting } from './waiting.ts';

/** `job.step_completed` of `charge` → `Step completed: charge`. */
export function describeEvent({ type, data }: Pick<LiveEvent, 'type' | 'data'>): string {
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
