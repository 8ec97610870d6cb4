// The lease protocol as a model: daemons that claim, start, renew, finish and give up; people who cancel, pause and resume;
// a database that handles one message at a time; messages and answers that arrive arbitrarily late, messages also twice. A
// message that is lost is one that never arrives, and a frozen daemon is one that takes no step while time passes: neither
// needs a step of its own. `guards` takes the protections out one by one, to show that the explorer finds what each of
// them prevents.
import { type Status, type TransitionName, transitions } from '../../../server/jobs/model/states.ts';
import type { Model } from './explore.ts';

export interface Guards {
  /** A lease ends only when no RUNNING job refers to it. */
  leaseEndsWithItsJobs: boolean;
  /** A handler starts only while its lease is trusted. */
  trustBeforeStart: boolean;
  /** Giving up a claim reserves its lease id, so that the claim cannot take effect later. */
  releaseReservesLease: boolean;
  /** A write of a holder matches the job's lease. */
  fence: boolean;
  /** Only the head of a lane is claimed. */
  headsOnly: boolean;
  /** The sweeper honours a stop request instead of queueing the job again. */
  sweepHonoursStop: boolean;
  /** An outcome ends only a job that is RUNNING. */
  status: boolean;
  /** A requeue takes back only the attempt of its own lease. */
  requeueFence: boolean;
}

export const allGuards: Guards = {
  leaseEndsWithItsJobs: true,
  trustBeforeStart: true,
  releaseReservesLease: true,
  fence: true,
  headsOnly: true,
  sweepHonoursStop: true,
  status: true,
  requeueFence: true,
};

export interface Bounds {
  daemons: number;
  /** The target of each job; jobs with one target form a lane. */
  targets: readonly (string | null)[];
  claims: number;
  renewals: number;
  maxAttempts: number;
  cancels?: number;
  pauses?: number;
  resumes?: number;
  /** Messages that the database gets a second time. */
  copies?: number;
  time: number;
}

type Act = 'cancel' | 'pause' | 'resume';

/** A daemon repeats these until it knows their outcome. A claim is sent once: if its answer is lost, it is released. */
const repeated: readonly Message['kind'][] = ['release', 'renew', 'requeue', 'finish'];

const leaseTime = 2;
const margin = 1;

interface ModelJob {
  status: Status;
  lease: number;
  attempt: number;
  /** Attempts that do not count: those before the last resume. */
  floor: number;
  /** Handler starts that count against `attempt`. */
  starts: number;
  /** The stop request of a RUNNING job. */
  stop: 'cancel' | 'pause' | null;
  /** What a person was promised last: nothing starts until a resume. */
  promised: 'cancel' | 'pause' | null;
}

type LeaseState = 'ACTIVE' | 'EXPIRED' | 'RELEASED';

interface HeldLease {
  trustedUntil: number;
  /**
   * ready: not begun; running: its handler runs; ended, stopped: its outcome is to be sent; sent: no answer yet.
   */
  jobs: Record<number, 'ready' | 'running' | 'ended' | 'stopped' | 'sent'>;
}

interface Daemon {
  claim: { lease: number; sentAt: number } | null;
  held: Record<number, HeldLease>;
}

type Message =
  | { kind: 'claim'; daemon: number; lease: number; sentAt: number }
  | { kind: 'release'; daemon: number; lease: number }
  | { kind: 'renew'; daemon: number; lease: number; sentAt: number }
  | { kind: 'requeue'; daemon: number; lease: number; job: number }
  | { kind: 'finish'; daemon: number; lease: number; job: number; stopped: boolean; last: boolean };

type Answer =
  | { kind: 'claimed'; daemon: number; lease: number; sentAt: number; jobs: number[] }
  | { kind: 'renewed'; daemon: number; lease: number; sentAt: number; jobs: number[]; stops: number[] }
  | { kind: 'finished'; daemon: number; lease: number; job: number };

export interface ProtocolState {
  time: number;
  jobs: ModelJob[];
  leases: Record<number, { state: LeaseState; expiresAt: number }>;
  daemons: Daemon[];
  messages: Message[];
  answers: Answer[];
  claims: number;
  renewals: number;
  acts: Record<Act, number>;
  copies: number;
  broken: string | null;
}

export function leaseProtocol(bounds: Bounds, guards: Guards): Model<ProtocolState> {
  return {
    initial: {
      time: 0,
      jobs: bounds.targets.map(() => ({
        status: 'QUEUED',
        lease: 0,
        attempt: 0,
        floor: 0,
        starts: 0,
        stop: null,
        promised: null,
      })),
      leases: {},
      daemons: Array.from({ length: bounds.daemons }, () => ({ claim: null, held: {} })),
      messages: [],
      answers: [],
      claims: 0,
      renewals: 0,
      acts: { cancel: 0, pause: 0, resume: 0 },
      copies: 0,
      broken: null,
    },
    steps: (state) => new Stepper(state, bounds, guards).all(),
    violation: (state) => state.broken ?? stateViolation(state, bounds),
    key: keyOf,
  };
}

/** Messages and answers have no order; everything else is written as it is. */
function keyOf(state: ProtocolState): string {
  const sorted = (list: object[]) => list.map((one) => JSON.stringify(one)).sort();
  return JSON.stringify({ ...state, messages: sorted(state.messages), answers: sorted(state.answers) });
}

function stateViolation(state: ProtocolState, bounds: Bounds): string | undefined {
  for (const [id, job] of state.jobs.entries()) {
    if (job.status === 'RUNNING' && state.leases[job.lease]?.state !== 'ACTIVE') {
      return `job ${id} is RUNNING and its lease is not active`;
    }
    if (job.attempt - job.floor > bounds.maxAttempts) return `job ${id} has more attempts than allowed`;
    if (job.attempt < job.floor) return `job ${id} has got back an attempt that it had not used`;
  }
  const running = new Map<string, number>();
  for (const daemon of state.daemons) {
    for (const held of Object.values(daemon.held)) {
      for (const [id, phase] of Object.entries(held.jobs)) {
        // A handler whose lease is no longer trusted has been aborted.
        if (phase !== 'running' || state.time >= held.trustedUntil) continue;
        const target = bounds.targets[Number(id)] ?? `job ${id}`;
        running.set(target, (running.get(target) ?? 0) + 1);
      }
    }
  }
  for (const [target, count] of running) if (count > 1) return `two handlers run at once for ${target}`;
  if (!isQuiet(state)) return undefined;
  for (const [id, job] of state.jobs.entries()) {
    if (job.status === 'ERROR' && job.starts < job.attempt) return `job ${id} failed without having run`;
  }
  return undefined;
}

/** No daemon remembers anything that it would still do. */
function isQuiet(state: ProtocolState): boolean {
  return (
    // A daemon repeats these until they are answered; all others may have been lost.
    state.messages.every(({ kind }) => kind !== 'release' && kind !== 'requeue') &&
    state.daemons.every((daemon) => daemon.claim === null && Object.keys(daemon.held).length === 0)
  );
}

class Stepper {
  readonly #state: ProtocolState;
  readonly #bounds: Bounds;
  readonly #guards: Guards;

  constructor(state: ProtocolState, bounds: Bounds, guards: Guards) {
    this.#state = state;
    this.#bounds = bounds;
    this.#guards = guards;
  }

  *all(): Generator<readonly [string, ProtocolState]> {
    const state = this.#state;
    if (state.time < this.#bounds.time) yield this.#to('time passes', (next) => void (next.time += 1));
    for (let d = 0; d < state.daemons.length; d++) yield* this.#daemonSteps(d);
    for (let i = 0; i < state.messages.length; i++) {
      const message = state.messages[i] as Message;
      const label = `${message.kind} of daemon ${message.daemon}, lease ${message.lease}`;
      yield this.#to(`the database handles ${label}`, (next) => {
        next.messages.splice(i, 1);
        this.#handle(next, message);
      });
      if (state.copies >= (this.#bounds.copies ?? 0) || !repeated.includes(message.kind)) continue;
      yield this.#to(`the database handles ${label}, and a copy comes later`, (next) => {
        next.copies += 1;
        this.#handle(next, message);
      });
    }
    for (let i = 0; i < state.answers.length; i++) {
      const answer = state.answers[i] as Answer;
      const label = `${answer.kind} for daemon ${answer.daemon}, lease ${answer.lease}`;
      yield this.#to(`arrives: ${label}`, (next) => {
        next.answers.splice(i, 1);
        this.#receive(next, answer);
      });
    }
    for (const [id, lease] of Object.entries(state.leases)) {
      if (lease.state !== 'ACTIVE' || state.time <= lease.expiresAt) continue;
      yield this.#to(`the sweeper ends lease ${id}`, (next) => this.#sweep(next, Number(id)));
    }
    yield* this.#userSteps();
  }

  *#daemonSteps(d: number): Generator<readonly [string, ProtocolState]> {
    const { state, daemon } = { state: this.#state, daemon: this.#state.daemons[d] as Daemon };
    if (daemon.claim === null && Object.keys(daemon.held).length === 0 && state.claims < this.#bounds.claims) {
      yield this.#to(`daemon ${d} sends a claim`, (next) => {
        next.claims += 1;
        const claim = { lease: next.claims, sentAt: next.time };
        (next.daemons[d] as Daemon).claim = claim;
        next.messages.push({ kind: 'claim', daemon: d, ...claim });
      });
    }
    if (daemon.claim !== null) {
      const { lease } = daemon.claim;
      yield this.#to(`daemon ${d} gives up claim ${lease}`, (next) => {
        (next.daemons[d] as Daemon).claim = null;
        dropAnswers(next, d, lease);
        next.messages.push({ kind: 'release', daemon: d, lease });
      });
    }
    for (const [id, held] of Object.entries(daemon.held)) yield* this.#leaseSteps(d, Number(id), held);
  }

  *#leaseSteps(d: number, lease: number, held: HeldLease): Generator<readonly [string, ProtocolState]> {
    const trusted = this.#state.time < held.trustedUntil;
    const heldIn = (next: ProtocolState) => (next.daemons[d] as Daemon).held[lease] as HeldLease;
    if (this.#state.renewals < this.#bounds.renewals) {
      yield this.#to(`daemon ${d} renews lease ${lease}`, (next) => {
        next.renewals += 1;
        next.messages.push({ kind: 'renew', daemon: d, lease, sentAt: next.time });
      });
    }
    for (const [key, phase] of Object.entries(held.jobs)) {
      const job = Number(key);
      if (phase === 'ready' && (trusted || !this.#guards.trustBeforeStart)) {
        yield this.#to(`daemon ${d} starts job ${job}`, (next) => this.#start(next, d, lease, job));
      }
      if (phase === 'ready' && !trusted && this.#guards.trustBeforeStart) {
        yield this.#to(`daemon ${d} requeues job ${job}, which has not begun`, (next) => {
          this.#forget(next, d, lease, job);
          next.messages.push({ kind: 'requeue', daemon: d, lease, job });
        });
      }
      if (phase === 'running' && trusted) {
        yield this.#to(`the handler of job ${job} ends`, (next) => void (heldIn(next).jobs[job] = 'ended'));
      }
      if (phase === 'running' && !trusted) {
        yield this.#to(`daemon ${d} aborts job ${job}`, (next) => this.#forget(next, d, lease, job));
      }
      if (phase === 'ended' || phase === 'stopped') {
        yield this.#to(`daemon ${d} sends the outcome of job ${job}`, (next) => {
          heldIn(next).jobs[job] = 'sent';
          const last = Object.keys(held.jobs).length === 1;
          next.messages.push({ kind: 'finish', daemon: d, lease, job, stopped: phase === 'stopped', last });
        });
      }
      if ((phase === 'ended' || phase === 'stopped' || phase === 'sent') && !trusted) {
        yield this.#to(`daemon ${d} gives up the outcome of job ${job}`, (next) => this.#forget(next, d, lease, job));
      }
    }
  }

  *#userSteps(): Generator<readonly [string, ProtocolState]> {
    for (const [id, job] of this.#state.jobs.entries()) {
      for (const act of ['cancel', 'pause', 'resume'] as const) {
        if (this.#state.acts[act] >= (this.#bounds[`${act}s`] ?? 0)) continue;
        const asks = act !== 'resume' && job.status === 'RUNNING' && job.stop !== act && job.stop !== 'cancel';
        if (!asks && !allows(act, job.status)) continue;
        yield this.#to(`a person sends ${act} for job ${id}`, (next) => {
          next.acts[act] += 1;
          const changed = next.jobs[id] as ModelJob;
          changed.promised = act === 'resume' ? null : act;
          if (asks) changed.stop = act;
          else this.#move(next, changed, act);
          // A fresh set of attempts.
          if (act === 'resume') Object.assign(changed, { floor: changed.attempt, starts: changed.attempt });
        });
      }
    }
  }

  #handle(next: ProtocolState, message: Message): void {
    switch (message.kind) {
      case 'claim':
        this.#claim(next, message);
        return;
      case 'release':
        this.#release(next, message.lease);
        return;
      case 'requeue': {
        const job = next.jobs[message.job] as ModelJob;
        if (job.lease !== message.lease && this.#guards.requeueFence) return;
        this.#requeue(next, job);
        this.#endLease(next, message.lease, true);
        return;
      }
      case 'renew': {
        const lease = next.leases[message.lease];
        if (lease?.state !== 'ACTIVE') return void this.#renewed(next, message, []);
        lease.expiresAt = next.time + leaseTime;
        const owned = [...next.jobs.entries()].filter(([, j]) => j.status === 'RUNNING' && j.lease === message.lease);
        return void this.#renewed(next, message, owned);
      }
      case 'finish': {
        const job = next.jobs[message.job] as ModelJob;
        const owns = job.lease === message.lease || !this.#guards.fence;
        const fits = allows('complete', job.status) || !this.#guards.status;
        if (owns && fits) this.#move(next, job, message.stopped ? stopOf(job) : 'complete');
        if (message.last) this.#endLease(next, message.lease, false);
        if (next.daemons[message.daemon]?.held[message.lease] === undefined) return;
        next.answers.push({ kind: 'finished', daemon: message.daemon, lease: message.lease, job: message.job });
      }
    }
  }

  #claim(next: ProtocolState, { daemon, lease, sentAt }: Message & { kind: 'claim' }): void {
    if (next.leases[lease] !== undefined) return;
    const blocked = new Set<string>();
    const taken: number[] = [];
    for (const [id, job] of next.jobs.entries()) {
      const target = this.#bounds.targets[id] ?? null;
      const isHead = target === null || !blocked.has(target) || !this.#guards.headsOnly;
      if (target !== null && !['SUCCESS', 'CANCELED'].includes(job.status)) blocked.add(target);
      if (job.status !== 'QUEUED' || !isHead) continue;
      this.#move(next, job, 'start');
      Object.assign(job, { lease, attempt: job.attempt + 1, stop: null });
      taken.push(id);
    }
    if (taken.length > 0) next.leases[lease] = { state: 'ACTIVE', expiresAt: next.time + leaseTime };
    if (next.daemons[daemon]?.claim?.lease === lease) {
      next.answers.push({ kind: 'claimed', daemon, lease, sentAt, jobs: taken });
    }
  }

  /** Requeues the jobs of the claim if it took effect. Otherwise it never will. */
  #release(next: ProtocolState, lease: number): void {
    for (const job of next.jobs) {
      if (job.lease === lease) this.#requeue(next, job);
    }
    const found = next.leases[lease];
    if (found !== undefined) found.state = 'RELEASED';
    else if (this.#guards.releaseReservesLease) next.leases[lease] = { state: 'RELEASED', expiresAt: 0 };
  }

  /** Takes back an attempt that has not begun, also if a sweeper has ended it meanwhile. It costs nothing. */
  #requeue(next: ProtocolState, job: ModelJob): void {
    const transition = job.status === 'ERROR' ? 'requeueUnstarted' : 'requeue';
    if (!allows(transition, job.status)) return;
    this.#move(next, job, job.stop === null ? transition : stopOf(job));
    if (job.status === 'QUEUED') job.attempt -= 1;
  }

  #endLease(next: ProtocolState, lease: number, onlyIfUnused: boolean): void {
    const found = next.leases[lease];
    if (found?.state !== 'ACTIVE') return;
    const used = next.jobs.some((job) => job.status === 'RUNNING' && job.lease === lease);
    if (used && (onlyIfUnused || this.#guards.leaseEndsWithItsJobs)) return;
    found.state = 'RELEASED';
  }

  #sweep(next: ProtocolState, lease: number): void {
    for (const job of next.jobs) {
      if (job.status !== 'RUNNING' || job.lease !== lease) continue;
      if (job.stop !== null && this.#guards.sweepHonoursStop) this.#move(next, job, stopOf(job));
      else this.#move(next, job, job.attempt - job.floor < this.#bounds.maxAttempts ? 'recover' : 'fail');
    }
    (next.leases[lease] as { state: LeaseState }).state = 'EXPIRED';
  }

  #renewed(
    next: ProtocolState,
    { daemon, lease, sentAt }: Message & { kind: 'renew' },
    owned: (readonly [number, ModelJob])[],
  ): void {
    if (next.daemons[daemon]?.held[lease] === undefined) return;
    const jobs = owned.map(([id]) => id);
    const stops = owned.filter(([, job]) => job.stop !== null).map(([id]) => id);
    next.answers.push({ kind: 'renewed', daemon, lease, sentAt, jobs, stops });
  }

  #receive(next: ProtocolState, answer: Answer): void {
    const daemon = next.daemons[answer.daemon] as Daemon;
    if (answer.kind === 'claimed') {
      if (daemon.claim?.lease !== answer.lease) return;
      daemon.claim = null;
      if (answer.jobs.length === 0) return;
      const jobs = Object.fromEntries(answer.jobs.map((id) => [id, 'ready' as const]));
      daemon.held[answer.lease] = { trustedUntil: answer.sentAt + leaseTime - margin, jobs };
      return;
    }
    const held = daemon.held[answer.lease];
    if (held === undefined) return;
    if (answer.kind === 'finished') {
      this.#forget(next, answer.daemon, answer.lease, answer.job);
      return;
    }
    if (answer.jobs.length > 0) {
      held.trustedUntil = Math.max(held.trustedUntil, answer.sentAt + leaseTime - margin);
    }
    // Jobs that the lease no longer owns are lost, and jobs with a stop request are stopped. Outcomes in flight are
    // fenced.
    for (const [key, phase] of Object.entries(held.jobs)) {
      const job = Number(key);
      const { daemon: d, lease } = answer;
      const isOwned = answer.jobs.includes(job);
      if (phase === 'sent' || (isOwned && !answer.stops.includes(job))) continue;
      if (isOwned && phase === 'running') held.jobs[job] = 'stopped';
      if (isOwned && phase !== 'ready') continue;
      if (phase === 'ready') next.messages.push({ kind: 'requeue', daemon: d, lease, job });
      this.#forget(next, d, lease, job);
    }
  }

  #start(next: ProtocolState, d: number, lease: number, id: number): void {
    const job = next.jobs[id] as ModelJob;
    const row = next.leases[lease];
    const owns =
      job.status === 'RUNNING' && job.lease === lease && row?.state === 'ACTIVE' && next.time <= row.expiresAt;
    if (!owns) next.broken = `job ${id} starts on a lease that is over`;
    if (job.promised !== null && job.status !== 'RUNNING') next.broken = `job ${id} starts after its ${job.promised}`;
    ((next.daemons[d] as Daemon).held[lease] as HeldLease).jobs[id] = 'running';
    job.starts += 1;
  }

  #forget(next: ProtocolState, d: number, lease: number, job: number): void {
    const daemon = next.daemons[d] as Daemon;
    const held = daemon.held[lease];
    if (held === undefined) return;
    delete held.jobs[job];
    if (Object.keys(held.jobs).length > 0) return;
    delete daemon.held[lease];
    dropAnswers(next, d, lease);
  }

  /** Allows only the transitions of the table, and none out of a terminal state. */
  #move(next: ProtocolState, job: ModelJob, name: TransitionName): void {
    if (!allows(name, job.status)) next.broken = `${name} is not allowed from ${job.status}`;
    const to = transitions[name].to;
    if (job.promised !== null && (to === 'QUEUED' || to === 'RUNNING')) next.broken = `${name} after a ${job.promised}`;
    job.status = to;
    if (to !== 'RUNNING') job.stop = null;
  }

  #to(label: string, change: (next: ProtocolState) => void): readonly [string, ProtocolState] {
    const next = copyOf(this.#state);
    change(next);
    return [label, next];
  }
}

function stopOf({ stop }: ModelJob): TransitionName {
  return stop === 'pause' ? 'stopPaused' : 'stopCanceled';
}

/** Nobody waits for them any more: states that differ only in them are the same. */
function dropAnswers(next: ProtocolState, daemon: number, lease: number): void {
  next.answers = next.answers.filter((answer) => answer.daemon !== daemon || answer.lease !== lease);
}

/** Messages and answers are never changed, so they are shared. */
function copyOf(state: ProtocolState): ProtocolState {
  return {
    ...state,
    jobs: state.jobs.map((job) => ({ ...job })),
    leases: Object.fromEntries(Object.entries(state.leases).map(([id, lease]) => [id, { ...lease }])),
    daemons: state.daemons.map(({ claim, held }) => ({
      claim,
      held: Object.fromEntries(Object.entries(held).map(([id, lease]) => [id, { ...lease, jobs: { ...lease.jobs } }])),
    })),
    acts: { ...state.acts },
    messages: [...state.messages],
    answers: [...state.answers],
  };
}

function allows(name: TransitionName, from: Status): boolean {
  return (transitions[name].from as readonly Status[]).includes(from);
}
