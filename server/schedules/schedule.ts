// A schedule as the code sees it: when, in which zone, what to enqueue, and what to do about missed runs.
import type { JobRequest } from '../jobs/enqueue/job-request.ts';

export const missedPolicies = ['skip', 'latest', 'all'] as const;
export type MissedPolicy = (typeof missedPolicies)[number];

/** The enqueue request of each firing; time and idempotency key are the schedule's own. */
export type ScheduledJob = Omit<JobRequest, 'run_at' | 'client_request_id'>;

export interface Schedule {
  id: string;
  name: string;
  cron: string;
  timezone: string;
  job: ScheduledJob;
  missed: MissedPolicy;
  pausedAt: string | null;
  pausedBy: string | null;
  nextAt: string | null;
  lastFiredAt: string | null;
  lastJobId: string | null;
  author: string | null;
  createdAt: string;
  updatedAt: string;
}

export const scheduleColumns = `id, name, cron, timezone, job, missed, paused_at as "pausedAt", paused_by as "pausedBy",
  next_at as "nextAt", last_fired_at as "lastFiredAt", last_job_id as "lastJobId", author, created_at as "createdAt",
  updated_at as "updatedAt"`;

/** For events. */
export function actorOf(schedule: Pick<Schedule, 'name'>): string {
  return `schedule:${schedule.name}`;
}
