// A phase of a job, as its row says.
import type { JobError } from './job-values.ts';

export type PhaseStatus = 'pending' | 'running' | 'completed' | 'partial' | 'failed' | 'skipped' | 'cancelled';

export interface Phase {
  name: string;
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
}
