// The actions on a job or a target: when they are available, and the requests that they send.
import { toast } from '../parts/shell/toasts.tsx';
import { api, enc } from './api.ts';
import type { Hold, JobSummary, LaneJob, Status } from './types.ts';

export type JobAction = 'resume' | 'resolve' | 'skip' | 'pause' | 'cancel';

export interface Actionable {
  id: string;
  type: string;
  status: Status;
  target_id: string | null;
  hold: Hold | null;
  cancel_requested?: boolean;
  usage?: JobSummary['usage'];
}

export function actionable(job: LaneJob, targetId: string): Actionable {
  return { ...job, target_id: targetId };
}

const waiting: readonly Status[] = ['PENDING', 'QUEUED', 'CLAIMED', 'PREPARING', 'LEASE_PENDING', 'WAITING'];

/** The actions that the job's status allows, the most useful first. */
export function actionsOf(job: Actionable, holdsLane = job.target_id !== null): JobAction[] {
  if (job.status === 'PAUSED' || job.status === 'ERROR') {
    return ['resume', 'resolve', ...(holdsLane ? (['skip'] as const) : (['cancel'] as const))];
  }
  if (job.status === 'RUNNING') return job.cancel_requested ? ['cancel'] : ['pause', 'cancel'];
  return waiting.includes(job.status) ? ['pause', 'cancel'] : [];
}

export interface ActionText {
  label: string;
  title: string;
  explain: string;
  done: string;
  danger?: boolean;
}

export const actionTexts: Record<JobAction, ActionText> = {
  resume: {
    label: 'Resume',
    title: 'Resume job',
    explain: 'It runs again, first in its lane, with a fresh set of attempts.',
    done: 'Resumed',
  },
  resolve: {
    label: 'Resolve',
    title: 'Resolve job',
    explain: 'Ends it as SUCCESS with the result that you give. This cannot be undone.',
    done: 'Resolved',
  },
  skip: {
    label: 'Skip',
    title: 'Skip job',
    explain: 'Cancels the job that holds the lane, so that the lane continues. This cannot be undone.',
    done: 'Skipped',
    danger: true,
  },
  pause: {
    label: 'Pause',
    title: 'Pause job',
    explain: 'It stops at its next heartbeat, and holds its lane until somebody resumes it.',
    done: 'Pause requested',
  },
  cancel: {
    label: 'Cancel',
    title: 'Cancel job',
    explain: 'Ends the job without a result. A running handler is asked to stop. This cannot be undone.',
    done: 'Cancel requested',
    danger: true,
  },
};

export interface ActionBody {
  reason?: string | undefined;
  author?: string | undefined;
  token_limit?: number | undefined;
  budget?: Record<string, number> | undefined;
  result?: unknown;
}

export async function actOnJob(job: Actionable, action: JobAction, body: ActionBody = {}): Promise<void> {
  await api(`/jobs/${enc(job.id)}/${action}`, { method: 'POST', body: named(body) });
  toast(`${actionTexts[action].done}: ${job.type}`, {
    ...(action === 'pause' &&
      job.status !== 'RUNNING' && { undo: () => void actOnJob({ ...job, status: 'PAUSED' }, 'resume').catch(report) }),
  });
}

export interface TargetPause {
  reason?: string | undefined;
  until?: string | undefined;
}

export async function pauseTarget(targetId: string, body: TargetPause): Promise<void> {
  await api(`/targets/${enc(targetId)}/pause`, { method: 'POST', body: named(body) });
  toast(`Paused ${targetId}: a running job continues, no other starts`, {
    undo: () => void resumeTarget(targetId).catch(report),
  });
}

export async function resumeTarget(targetId: string): Promise<void> {
  await api(`/targets/${enc(targetId)}/resume`, { method: 'POST', body: named({}) });
  toast(`Resumed ${targetId}`);
}

export async function startCanary(targetId: string, reason: string): Promise<void> {
  await api(`/targets/${enc(targetId)}/canary`, { method: 'POST', body: named({ reason }) });
  toast(`One job of ${targetId} runs; the others wait for its success`);
}

export function report(error: unknown): void {
  toast(error instanceof Error ? error.message : String(error), { tone: 'fail' });
}

const authorItem = 'leasehold.author';

export function author(): string {
  return localStorage.getItem(authorItem) ?? '';
}

export function setAuthor(name: string): void {
  localStorage.setItem(authorItem, name.trim());
}

/** Includes the person's name, if one was given. The key is recorded in any case. */
export function named<T extends object>(body: T): T & { author?: string } {
  const name = author();
  const given = Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined && value !== ''));
  return { ...(given as T), ...(name !== '' && { author: name }) };
}
