// The engine as it should be, in memory and without SQL: states, lanes, leases, wishes. A sequence of
// verbs that leads the database anywhere else than this model has found a bug in one of the two.
import type { Claimed } from '../../../server/jobs/claim/claim.ts';
import type { Outcome } from '../../../server/jobs/finish/outcome.ts';
import { type Priority, priorities, type StopIntent } from '../../../server/jobs/model/job.ts';
import { isTerminal, type Status } from '../../../server/jobs/model/states.ts';
import { assertNever } from '../../../server/kernel/errors.ts';
import { DurableModel, type ModelCall, openCall } from './durable-model.ts';

export interface ModelJob {
  id: string;
  target: string | null;
  priority: Priority;
  maxAttempts: number;
  blocks: boolean;
  backsOff: boolean;
  status: Status;
  head: boolean;
  rank: number | null;
  seq: number;
  attempt: number;
  floor: number;
  lease: string | null;
  intent: StopIntent | null;
  /** The last thing that made or ended a hold. */
  hold: 'held' | 'resumed' | 'resolved' | undefined;
  /** Its durable calls, in their order. */
  calls: ModelCall[];
  /** How many events had been received when it was enqueued: it takes later ones only. */
  since: number;
  waitsFor?: 'sleep' | 'question' | 'event';
}

export interface ModelLease {
  id: string;
  jobs: ModelJob[];
  ended: boolean;
}

export type NewModelJob = Pick<ModelJob, 'id' | 'target' | 'priority' | 'maxAttempts' | 'blocks' | 'backsOff'> & {
  future: boolean;
};

/** The response to a person's action: done, requested from the worker, or refused. */
export type ActionOutcome = 'done' | 'asked' | 'refused';

export class EngineModel {
  readonly jobs: ModelJob[] = [];
  readonly leases: ModelLease[] = [];
  /** Every attempt that ever was: who held which job under which lease. */
  readonly attempts: { job: ModelJob; lease: ModelLease }[] = [];
  readonly durable = new DurableModel();
  readonly #lanes = new Map<string, { seq: number; paused: boolean }>();

  enqueue(given: NewModelJob): ModelJob {
    const { future, ...rest } = given;
    const job: ModelJob = {
      ...rest,
      status: future ? 'PENDING' : 'QUEUED',
      head: given.target === null,
      rank: null,
      seq: this.#nextSeq(given.target),
      attempt: 0,
      floor: 0,
      lease: null,
      intent: null,
      hold: undefined,
      calls: [],
      since: this.durable.received.length,
    };
    this.jobs.push(job);
    if (given.target !== null && !future) {
      job.rank = this.#normalRank(job);
      this.#promote(given.target);
    }
    return job;
  }

  /** The jobs that a claim takes, in order. */
  claimable(limit: number): ModelJob[] {
    const heads = this.jobs.filter((job) => job.status === 'QUEUED' && job.head);
    const rank = (job: ModelJob) => priorities.indexOf(job.priority);
    return heads.sort((a, b) => rank(a) - rank(b) || this.jobs.indexOf(a) - this.jobs.indexOf(b)).slice(0, limit);
  }

  claim(limit: number, leaseId: string): void {
    this.start(this.claimable(limit), leaseId);
  }

  /** These were taken together. */
  start(jobs: ModelJob[], leaseId: string): void {
    const lease: ModelLease = { id: leaseId, jobs, ended: false };
    if (lease.jobs.length === 0) return;
    this.leases.push(lease);
    for (const job of lease.jobs) {
      Object.assign(job, { status: 'RUNNING', lease: leaseId, attempt: job.attempt + 1, intent: null });
      this.attempts.push({ job, lease });
    }
  }

  owns(lease: ModelLease, job: ModelJob): boolean {
    return job.status === 'RUNNING' && job.lease === lease.id;
  }

  hasAttemptsLeft(job: ModelJob): boolean {
    return job.attempt - job.floor < job.maxAttempts;
  }

  /** False: refused, because the lease no longer owns the job. */
  complete(lease: ModelLease, job: ModelJob, kind: Outcome['kind']): boolean {
    if (!this.owns(lease, job)) return false;
    this.#end(job, this.#superseded(job, kind));
    return true;
  }

  /** The head of a target's lane, if somebody could start it now. */
  startable(target: string | null): ModelJob | undefined {
    if (target === null) return undefined;
    return this.jobs.find((job) => job.target === target && job.head && job.status === 'QUEUED');
  }

  expire(lease: ModelLease): void {
    lease.ended = true;
    for (const job of lease.jobs) {
      if (!this.owns(lease, job)) continue;
      // A stop request decides, whether or not the job had attempts left.
      if (job.intent !== null) this.complete(lease, job, job.intent === 'pause' ? 'stopPaused' : 'stopCanceled');
      else if (!this.hasAttemptsLeft(job)) this.complete(lease, job, 'fail');
      else this.complete(lease, job, job.backsOff ? 'recoverLater' : 'recover');
    }
  }

  becomeDue(job: ModelJob): void {
    // A question has its own time, which has not come.
    if (job.status === 'WAITING' && job.waitsFor === 'question' && openCall(job)) return;
    if (job.status === 'WAITING') this.wake([job]);
    if (job.status !== 'PENDING') return;
    job.status = 'QUEUED';
    if (job.target === null) return;
    job.seq = this.#nextSeq(job.target);
    if (!job.head) job.rank = this.#normalRank(job);
    this.#demote(job.target);
    this.#promote(job.target);
  }

  suspendFor(lease: ModelLease, job: ModelJob, waitsFor: 'question' | 'event', kind: Outcome['kind']): boolean {
    const accepted = this.complete(lease, job, kind);
    if (accepted && job.status === 'WAITING') job.waitsFor = waitsFor;
    return accepted;
  }

  /** Together: they go first in their lanes, which they have kept or left. */
  wake(jobs: readonly ModelJob[]): void {
    for (const job of jobs) {
      job.status = 'QUEUED';
      if (!job.head) job.rank = 1;
    }
    for (const { target } of jobs) {
      if (target === null) continue;
      this.#demote(target);
      this.#promote(target);
    }
  }

  pause(job: ModelJob): ActionOutcome {
    if (job.status === 'PAUSED') return 'done';
    if (job.status === 'RUNNING') return this.#ask(job, 'pause');
    if (job.status !== 'PENDING' && job.status !== 'QUEUED' && job.status !== 'WAITING') return 'refused';
    Object.assign(job, { status: 'PAUSED', hold: 'held', rank: job.head ? null : 0 });
    this.#promote(job.target);
    return 'done';
  }

  cancel(job: ModelJob): ActionOutcome {
    if (job.status === 'CANCELED') return 'done';
    if (job.status === 'RUNNING') return this.#ask(job, 'cancel');
    if (isTerminal(job.status)) return 'refused';
    this.#leave(job, 'CANCELED');
    return 'done';
  }

  skip(job: ModelJob): ActionOutcome {
    if (job.status === 'CANCELED') return 'done';
    const holds = job.status === 'PAUSED' || (job.status === 'ERROR' && job.blocks);
    if (job.target === null || !holds) return 'refused';
    this.#leave(job, 'CANCELED');
    return 'done';
  }

  resume(job: ModelJob): ActionOutcome {
    if (job.status !== 'PAUSED' && job.status !== 'ERROR') {
      return job.hold === 'resumed' && !isTerminal(job.status) ? 'done' : 'refused';
    }
    Object.assign(job, { status: 'QUEUED', hold: 'resumed', floor: job.attempt });
    // A job that left its lane when it failed has to stand in line like one that waits; both go first.
    if (!job.head) job.rank = 1;
    if (job.target !== null) this.#demote(job.target);
    this.#promote(job.target);
    return 'done';
  }

  resolve(job: ModelJob): ActionOutcome {
    if (job.status !== 'PAUSED' && job.status !== 'ERROR') return job.hold === 'resolved' ? 'done' : 'refused';
    this.durable.endJob(job, 'skipped');
    this.#leave(job, 'SUCCESS');
    job.hold = 'resolved';
    return 'done';
  }

  pauseTarget(target: string): void {
    this.#lane(target).paused = true;
    this.#demote(target);
  }

  resumeTarget(target: string): void {
    this.#lane(target).paused = false;
    this.#promote(target);
  }

  /** Numbers of the lane that nobody got. */
  takeNumbers(target: string, count: number): void {
    this.#lane(target).seq += count;
  }

  /** Copies values that only the database can assign. */
  adopt({ leaseId, jobs }: Claimed): void {
    const lease: ModelLease = { id: leaseId, jobs: [], ended: false };
    for (const { id } of jobs) {
      const job = this.jobs.find((known) => known.id === id);
      if (job === undefined) continue;
      Object.assign(job, { status: 'RUNNING', lease: leaseId });
      lease.jobs.push(job);
      this.attempts.push({ job, lease });
    }
    if (lease.jobs.length > 0) this.leases.push(lease);
  }

  isKnown(target: string): boolean {
    return this.#lanes.has(target);
  }

  #superseded(job: ModelJob, kind: Outcome['kind']): Outcome['kind'] {
    if (kind === 'complete' || kind === 'completePartly' || job.intent === null) return kind;
    if (job.intent === 'cancel') return 'stopCanceled';
    return kind === 'fail' || kind === 'stopCanceled' ? kind : 'stopPaused';
  }

  #end(job: ModelJob, kind: Outcome['kind']): void {
    job.intent = null;
    switch (kind) {
      case 'complete':
        this.#leave(job, 'SUCCESS');
        break;
      case 'completePartly':
        this.#leave(job, 'PARTIAL');
        break;
      case 'stopCanceled':
        this.#leave(job, 'CANCELED');
        break;
      case 'fail':
        Object.assign(job, { status: 'ERROR', hold: 'held', head: job.target === null || job.blocks });
        this.#promote(job.target);
        break;
      case 'stopPaused':
        Object.assign(job, { status: 'PAUSED', hold: 'held' });
        break;
      case 'retry':
      case 'recoverLater':
        job.status = 'PENDING';
        break;
      case 'suspend':
        Object.assign(job, { status: 'WAITING', floor: job.floor + 1, waitsFor: 'sleep' });
        break;
      case 'suspendAside':
        Object.assign(job, { floor: job.floor + 1, waitsFor: 'sleep' });
        this.#leave(job, 'WAITING');
        break;
      case 'requeue':
        job.attempt -= 1;
        job.status = 'QUEUED';
        break;
      case 'recover':
        job.status = 'QUEUED';
        break;
      default:
        assertNever(kind);
    }
    if (job.target !== null) this.#demote(job.target);
  }

  #leave(job: ModelJob, status: Status): void {
    if (isTerminal(status)) this.durable.endJob(job, status === 'CANCELED' ? 'cancelled' : undefined);
    Object.assign(job, { status, head: job.target === null, rank: null });
    this.#promote(job.target);
  }

  #ask(job: ModelJob, intent: StopIntent): ActionOutcome {
    if (job.intent === 'cancel' && intent === 'pause') return 'refused';
    job.intent = intent;
    return 'asked';
  }

  #lane(target: string): { seq: number; paused: boolean } {
    const lane = this.#lanes.get(target) ?? { seq: 0, paused: false };
    this.#lanes.set(target, lane);
    return lane;
  }

  #nextSeq(target: string | null): number {
    return target === null ? 0 : ++this.#lane(target).seq;
  }

  #normalRank(job: ModelJob): number {
    return 2 + priorities.indexOf(job.priority);
  }

  /** A paused target has no claimable head. Its head is first in line when the target is resumed. */
  #demote(target: string): void {
    if (!this.#lane(target).paused) return;
    const head = this.jobs.find((job) => job.target === target && job.head && job.status === 'QUEUED');
    if (head) Object.assign(head, { head: false, rank: 1 });
  }

  #promote(target: string | null): void {
    if (target === null || this.#lane(target).paused) return;
    const lane = this.jobs.filter((job) => job.target === target);
    if (lane.some((job) => job.head)) return;
    const [next] = lane
      .filter((job) => job.rank !== null)
      .sort((a, b) => (a.rank as number) - (b.rank as number) || a.seq - b.seq);
    if (next) Object.assign(next, { head: true, rank: null });
  }
}
