// The one machine of job states, as data. Every statement that writes `status` takes its guard and
// its new value from here; the table in docs/concepts.md is tested against it.

export const statuses = [
  'PENDING',
  'QUEUED',
  'CLAIMED',
  'PREPARING',
  'LEASE_PENDING',
  'RUNNING',
  'PAUSED',
  'ERROR',
  'SUCCESS',
  'PARTIAL',
  'CANCELED',
] as const;
export type Status = (typeof statuses)[number];

export const terminalStatuses: readonly Status[] = ['SUCCESS', 'PARTIAL', 'CANCELED'];
/** Owned by somebody: the job has a lease, or a remote claim that may become one. */
export const ownedStatuses: readonly Status[] = ['CLAIMED', 'PREPARING', 'LEASE_PENDING', 'RUNNING'];
const claimed = ['CLAIMED', 'PREPARING', 'LEASE_PENDING'] as const;
const running = ['RUNNING'] as const;
const held = ['PAUSED', 'ERROR'] as const;

interface Transition {
  from: readonly Status[];
  to: Status;
  event: string;
  when: string;
}

export const transitions = {
  enqueue: { from: [], to: 'QUEUED', event: 'job.enqueued', when: 'enqueue, due now' },
  schedule: { from: [], to: 'PENDING', event: 'job.enqueued', when: 'enqueue, run_at in the future' },
  becomeDue: { from: ['PENDING'], to: 'QUEUED', event: 'job.due', when: 'due: its time or its retry backoff has come' },
  start: { from: ['QUEUED'], to: 'RUNNING', event: 'job.started', when: 'claimed by an in-process worker' },
  claim: { from: ['QUEUED'], to: 'CLAIMED', event: 'job.claimed', when: 'claimed by a remote worker' },
  prepare: { from: ['CLAIMED'], to: 'PREPARING', event: 'job.preparing', when: 'the remote worker reports' },
  awaitLease: {
    from: ['CLAIMED', 'PREPARING'],
    to: 'LEASE_PENDING',
    event: 'job.lease_pending',
    when: 'the remote worker reports',
  },
  denyLease: { from: claimed, to: 'LEASE_PENDING', event: 'job.lease_pending', when: 'lease denied for now' },
  grantLease: { from: claimed, to: 'RUNNING', event: 'job.lease_granted', when: 'lease granted' },
  expireClaim: { from: claimed, to: 'QUEUED', event: 'job.requeued', when: 'claim expired or given back' },
  complete: { from: running, to: 'SUCCESS', event: 'job.completed', when: 'every phase completed' },
  completePartly: {
    from: running,
    to: 'PARTIAL',
    event: 'job.partial',
    when: 'some phases completed, some failed (tolerated)',
  },
  retry: { from: running, to: 'PENDING', event: 'job.retrying', when: 'failed, recoverable, attempts left' },
  fail: {
    from: running,
    to: 'ERROR',
    event: 'job.failed',
    when: 'failed otherwise; token limit passed; timeout; lease expired with no attempts left',
  },
  stopPaused: {
    from: running,
    to: 'PAUSED',
    event: 'job.paused',
    when: 'pause asked, or drain grace over: handler stopped',
  },
  stopCanceled: { from: running, to: 'CANCELED', event: 'job.canceled', when: 'cancel asked: handler stopped' },
  requeue: {
    from: running,
    to: 'QUEUED',
    event: 'job.requeued',
    when: 'drain with on_drain requeue: the attempt is given back',
  },
  recover: { from: running, to: 'QUEUED', event: 'job.lease_expired', when: 'lease expired, attempts left' },
  recoverLater: {
    from: running,
    to: 'PENDING',
    event: 'job.lease_expired',
    when: 'lease expired, attempts left, with backoff',
  },
  requeueUnstarted: {
    from: ['ERROR'],
    to: 'QUEUED',
    event: 'job.requeued',
    when: 'lease expired before the attempt began, as its worker reports when it is back',
  },
  expire: { from: ['PENDING', 'QUEUED'], to: 'ERROR', event: 'job.failed', when: 'expired or orphaned while waiting' },
  pause: { from: ['PENDING', 'QUEUED', ...claimed], to: 'PAUSED', event: 'job.paused', when: 'pause, before it runs' },
  resume: { from: held, to: 'QUEUED', event: 'job.resumed', when: 'resume' },
  resolve: { from: held, to: 'SUCCESS', event: 'job.resolved', when: 'resolve: a person supplies the result' },
  cancel: {
    from: ['PENDING', 'QUEUED', ...claimed, ...held],
    to: 'CANCELED',
    event: 'job.canceled',
    when: 'cancel, when no handler runs',
  },
} as const satisfies Record<string, Transition>;

export type TransitionName = keyof typeof transitions;

/** `status in ('RUNNING')`: the guard of an UPDATE that makes this transition. */
export function guard(name: TransitionName, alias = ''): string {
  const prefix = alias === '' ? '' : `${alias}.`;
  return `${prefix}status in (${transitions[name].from.map((s) => `'${s}'`).join(', ')})`;
}

/** `status = 'SUCCESS'`: what an UPDATE that makes this transition sets. */
export function become(name: TransitionName): string {
  return `status = '${transitions[name].to}'`;
}

export function allows(name: TransitionName, from: Status): boolean {
  return (transitions[name].from as readonly Status[]).includes(from);
}

export function isTerminal(status: Status): boolean {
  return terminalStatuses.includes(status);
}
