// A phase of a job, as its row says.
import type { JobError } from './job-values.ts';

export type PhaseStatus = 'pending' | 'running' | 'completed' | 'partial' | 'failed' | 'skipped' | 'cancelled';

export type PhaseKind = 'phase' | 'step' | 'sleep' | 'event' | 'children' | 'question';

export interface Phase {
  name: string;
  /** `phase` of a definition with phases; the others are durable calls of `run`. */
  kind: PhaseKind;
  position: number;
  status: PhaseStatus;
  progress: number;
  message: string | null;
  result: unknown;
  error: JobError | null;
  /** Tries of the phase, over all attempts of the job. */
  attempt: number;
  startedAt: string | null;
  finishedAt: string | null;
  /** Until when a sleep lasts. */
  waitsUntil: string | null;
}
