// The state machine of jobs, as data. jobs/transition.ts renders every write of `status` from this table;
// the table in docs/concepts.md is tested against it.

export const statuses = [
  'PENDING',
  'QUEUED',
  'CLAIMED',
  'PREPARING',
  'LEASE_PENDING',
  'RUNNING',
  'WAITING',
  'PAUSED',
  'ERROR',
  'SUCCESS',
  'PARTIAL',
  'CANCELED',
] as const;
export type Status = (typeof statuses)[number];

/** Not started yet; claimable when the job is due and the head of its lane. */
export const unstartedStatuses = ['PENDING', 'QUEUED'] as const satisfies readonly Status[];
/** Claimed by a remote worker that has no lease yet. */
export const claimedStatuses = ['CLAIMED', 'PREPARING', 'LEASE_PENDING'] as const satisfies readonly Status[];
/** Has an owner: a lease, or a remote claim that may become one. */
export const ownedStatuses: readonly Status[] = [...claimedStatuses, 'RUNNING'];
/** These become due at `run_at`: the time, the backoff or the wait is over. */
export const timedStatuses = ['PENDING', 'WAITING'] as const satisfies readonly Status[];
/** A later request for its unique key may change the job, if no attempt has begun. */
export const replaceableStatuses: readonly Status[] = [...unstartedStatuses, 'WAITING', 'PAUSED'];
/** Stopped until a person resumes, resolves or cancels the job. */
export const heldStatuses = ['PAUSED', 'ERROR'] as const satisfies readonly Status[];
export const succeededStatuses: readonly Status[] = ['SUCCESS', 'PARTIAL'];
/** No transition leads out of these. */
export const terminalStatuses: readonly Status[] = [...succeededStatuses, 'CANCELED'];
const running = ['RUNNING'] as const;

/**
 * What a transition does to the job's place in its lane.
 * - `keep`: nothing.
 * - `join`: the job takes the next place of its priority, or becomes the head of an empty lane.
 * - `front`: the head stays head; if its target is paused, or the job was in line, it waits first in line.
 * - `hold`: the head stays head and stops the lane; a job in line does so when its turn comes.
 * - `holdOrLeave`: `hold`, or `leave` for a job with `on_error: continue`.
 * - `leave`: the job leaves its lane.
 */
export type LaneStep = 'keep' | 'join' | 'front' | 'hold' | 'holdOrLeave' | 'leave';

interface Transition {
  from: readonly Status[];
  to: Status;
  event: string;
  lane: LaneStep;
  when: string;
}

export const transitions = {
  enqueue: { from: [], to: 'QUEUED', event: 'job.enqueued', lane: 'join', when: 'enqueue, due now' },
  schedule: { from: [], to: 'PENDING', event: 'job.enqueued', lane: 'keep', when: 'enqueue, run_at in the future' },
  enqueueWaiting: {
    from: [],
    to: 'WAITING',
    event: 'job.enqueued',
    lane: 'keep',
    when: 'enqueue after other jobs, or as a child that has to wait for its turn',
  },
  becomeReady: {
    from: ['WAITING'],
    to: 'QUEUED',
    event: 'job.ready',
    lane: 'join',
    when: 'the jobs it runs after have ended, or a child has its turn',
  },
  becomeDue: {
    from: ['PENDING'],
    to: 'QUEUED',
    event: 'job.due',
    lane: 'join',
    when: 'due: its time or its retry backoff has come',
  },
  start: {
    from: ['QUEUED'],
    to: 'RUNNING',
    event: 'job.started',
    lane: 'keep',
    when: 'claimed by an in-process worker',
  },
  claim: { from: ['QUEUED'], to: 'CLAIMED', event: 'job.claimed', lane: 'keep', when: 'claimed by a remote worker' },
  prepare: {
    from: ['CLAIMED'],
    to: 'PREPARING',
    event: 'job.preparing',
    lane: 'keep',
    when: 'the remote worker reports',
  },
  awaitLease: {
    from: ['CLAIMED', 'PREPARING'],
    to: 'LEASE_PENDING',
    event: 'job.lease_pending',
    lane: 'keep',
    when: 'the remote worker reports',
  },
  denyLease: {
    from: claimedStatuses,
    to: 'LEASE_PENDING',
    event: 'job.lease_pending',
    lane: 'keep',
    when: 'lease denied for now',
  },
  grantLease: { from: claimedStatuses, to: 'RUNNING', event: 'job.lease_granted', lane: 'keep', when: 'lease granted' },
  expireClaim: {
    from: claimedStatuses,
    to: 'QUEUED',
    event: 'job.requeued',
    lane: 'front',
    when: 'claim expired or released',
  },
  complete: { from: running, to: 'SUCCESS', event: 'job.completed', lane: 'leave', when: 'every phase completed' },
  completePartly: {
    from: running,
    to: 'PARTIAL',
    event: 'job.partial',
    lane: 'leave',
    when: 'some phases completed, some failed (tolerated)',
  },
  retry: {
    from: running,
    to: 'PENDING',
    event: 'job.retrying',
    lane: 'keep',
    when: 'failed, recoverable, attempts left',
  },
  fail: {
    from: running,
    to: 'ERROR',
    event: 'job.failed',
    lane: 'holdOrLeave',
    when: 'failed otherwise; token limit passed; timeout; lease expired with no attempts left',
  },
  stopPaused: {
    from: running,
    to: 'PAUSED',
    event: 'job.paused',
    lane: 'hold',
    when: 'pause requested, or drain grace over: handler stopped',
  },
  stopCanceled: {
    from: running,
    to: 'CANCELED',
    event: 'job.canceled',
    lane: 'leave',
    when: 'cancel requested: handler stopped',
  },
  suspend: {
    from: running,
    to: 'WAITING',
    event: 'job.waiting',
    lane: 'keep',
    when: 'the handler waits: no slot, no lease, no attempt counted; keeps its lane',
  },
  suspendAside: {
    from: running,
    to: 'WAITING',
    event: 'job.waiting_aside',
    lane: 'leave',
    when: 'the same with whileWaiting release: leaves its lane until it wakes',
  },
  wake: {
    from: ['WAITING'],
    to: 'QUEUED',
    event: 'job.woken',
    lane: 'front',
    when: 'what it waits for has come, or its time is over',
  },
  requeue: {
    from: running,
    to: 'QUEUED',
    event: 'job.requeued',
    lane: 'front',
    when: 'drain with on_drain requeue: the attempt is not counted',
  },
  recover: {
    from: running,
    to: 'QUEUED',
    event: 'job.lease_expired',
    lane: 'front',
    when: 'lease expired, attempts left',
  },
  recoverLater: {
    from: running,
    to: 'PENDING',
    event: 'job.lease_expired',
    lane: 'keep',
    when: 'lease expired, attempts left, with backoff',
  },
  requeueUnstarted: {
    from: ['ERROR'],
    to: 'QUEUED',
    event: 'job.requeued',
    lane: 'front',
    when: 'lease expired before the attempt began, as its worker reports when it is back',
  },
  expire: {
    from: unstartedStatuses,
    to: 'ERROR',
    event: 'job.failed',
    lane: 'holdOrLeave',
    when: 'not started before it expired, or orphaned',
  },
  pause: {
    from: [...unstartedStatuses, ...claimedStatuses, 'WAITING'],
    to: 'PAUSED',
    event: 'job.paused',
    lane: 'hold',
    when: 'pause, when no handler runs',
  },
  resume: { from: heldStatuses, to: 'QUEUED', event: 'job.resumed', lane: 'front', when: 'resume' },
  resumeWaiting: {
    from: heldStatuses,
    to: 'WAITING',
    event: 'job.resumed',
    lane: 'leave',
    when: 'resume, while jobs it runs after have not ended',
  },
  resolve: {
    from: heldStatuses,
    to: 'SUCCESS',
    event: 'job.resolved',
    lane: 'leave',
    when: 'resolve: a person supplies the result',
  },
  cancel: {
    from: [...unstartedStatuses, ...claimedStatuses, 'WAITING', ...heldStatuses],
    to: 'CANCELED',
    event: 'job.canceled',
    lane: 'leave',
    when: 'cancel, when no handler runs',
  },
} as const satisfies Record<string, Transition>;

export type TransitionName = keyof typeof transitions;

export function allows(name: TransitionName, from: Status): boolean {
  return includes(transitions[name].from, from);
}

export function isTerminal(status: Status): boolean {
  return includes(terminalStatuses, status);
}

export function isClaimed(status: Status): boolean {
  return includes(claimedStatuses, status);
}

export function isOnHold(status: Status): boolean {
  return includes(heldStatuses, status);
}

/** `j.status in ('PAUSED', 'ERROR')`. */
export function statusIn(set: readonly Status[], column = 'status'): string {
  return `${column} in (${set.map((status) => `'${status}'`).join(', ')})`;
}

function includes(set: readonly Status[], status: Status): boolean {
  return set.includes(status);
}
