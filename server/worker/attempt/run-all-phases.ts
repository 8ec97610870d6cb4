// Runs a job of ordered phases. Each phase is stored when it ends, and an attempt starts with the first phase that is
// not done. The ends of all phases decide the end of the job.

import { toJobError } from '../../durable/job-error.ts';
import { JobStopped, requestedStop, type StopReason, stopReasonOf } from '../../durable/stop-reason.ts';
import { openPhases, type PhaseChange, savePhases } from '../../jobs/attempt/phases.ts';
import { isHeld } from '../../jobs/claim/lease.ts';
import { type JobError, withoutTrace } from '../../jobs/model/job.ts';
import { jobError } from '../../jobs/model/job-errors.ts';
import type { Phase, PhaseStatus, StopRequest } from '../../jobs/model/job-values.ts';
import type { PhaseDefinition } from '../handlers/define-job.ts';
import type { ContextParts } from './context.ts';
import type { HandlerEnd, HandlerRun } from './handler-run.ts';
import { overallProgress, type PhaseScope } from './handler-run.ts';
import { type Invoke, type NotBegun, type PhaseEnd, runPhase } from './run-phase.ts';

export interface PhasedJob {
  phases: readonly PhaseDefinition[];
  run: HandlerRun;
  parts: ContextParts;
  /** The phase runs in a thread, which can be terminated alone. */
  isolated: boolean;
  invoke: Invoke;
  store: PhaseStore;
}

/** Stores the phases of a job: in the database, or in memory for a test. */
export interface PhaseStore {
  /** Returns the phases of the job in order; undefined if the lease is lost. */
  open(names: readonly string[]): Promise<readonly StoredPhase[] | undefined>;
  /** Returns the stop that was requested; then no phase is started. Returns undefined if the lease is lost. */
  save(changes: PhaseChange[], progress: number | undefined): Promise<StopRequest | undefined>;
}

export type StoredPhase = Pick<Phase, 'name' | 'status' | 'result' | 'message'> & Partial<Pick<Phase, 'kind'>>;

type StoredEnd = Exclude<PhaseEnd, { status: 'stopped' | 'lost' }>;

// The phase was done in an earlier attempt and is not run again.
const doneStatuses: readonly PhaseStatus[] = ['completed', 'partial', 'skipped'];

export async function runPhases(job: PhasedJob): Promise<HandlerEnd> {
  return new PhaseRunner(job).run();
}

class PhaseRunner {
  readonly #job: PhasedJob;
  readonly #run: HandlerRun;
  #rows = new Map<string, StoredPhase>();
  #ends = new Map<string, StoredEnd>();
  #results: Record<string, unknown> = {};
  /** The phase was marked as running in the write that ended the phase before it. */
  #begun: string | undefined;
  /** The stop request in the answer to the last write, which the heartbeat may not have reported yet. */
  #requested: StopReason | undefined;

  constructor(job: PhasedJob) {
    this.#job = job;
    this.#run = job.run;
  }

  async run(): Promise<HandlerEnd> {
    const { phases, run } = this.#job;
    const names = phases.map((phase) => phase.name);
    const rows = await this.#job.store.open(names);
    if (rows === undefined) return this.#lost();
    const missing = findMissing(rows, names);
    if (missing !== undefined) return { kind: 'failed', error: missing, recoverable: false };
    this.#rows = new Map(rows.map((row) => [row.name, row]));

    for (const [index, phase] of phases.entries()) {
      if (this.#isDone(phase)) {
        this.#restore(phase);
        continue;
      }
      if (this.#requested !== undefined) run.stop(this.#requested);
      // The process may have been suspended since the answer to the last write.
      await run.check?.();
      if (run.signal.aborted) return this.#stopped();
      const scope = { name: phase.name, index, count: phases.length };
      const end = await this.#runOne(phase, scope);
      if (end.status === 'stopped') return this.#stopped();
      if (end.status === 'lost' || !(await this.#store(phase, scope, end))) return this.#lost();
      if (end.status === 'failed' && !phase.tolerateFailure) {
        return { kind: 'failed', error: { ...end.error, phase: phase.name }, recoverable: end.recoverable };
      }
    }
    return overallEnd(this.#ends, this.#results);
  }

  #isDone(phase: PhaseDefinition | undefined): boolean {
    const status = phase && this.#rows.get(phase.name)?.status;
    return status !== undefined && doneStatuses.includes(status);
  }

  #restore({ name }: PhaseDefinition): void {
    const row = this.#rows.get(name) as StoredPhase;
    this.#remember(name, { status: row.status, result: row.result, message: row.message ?? undefined } as StoredEnd);
  }

  #remember(name: string, end: StoredEnd): void {
    this.#ends.set(name, end);
    if (end.status === 'completed' || end.status === 'partial') this.#results[name] = end.result;
  }

  async #runOne(phase: PhaseDefinition, scope: PhaseScope): Promise<PhaseEnd> {
    const { parts, invoke, isolated } = this.#job;
    const results = this.#results;
    if (phase.when !== undefined) {
      const wanted = await phase.when({ payload: parts.payload, phaseResults: () => ({ ...results }) });
      if (!wanted) return { status: 'skipped', message: 'Its condition was false' };
    }
    const begin = () => this.#begin(phase, scope);
    const notBegun = this.#begun === phase.name ? undefined : await begin();
    if (notBegun !== undefined) return notBegun;
    return runPhase({ phase, run: this.#run, parts: { ...parts, phase: scope, results }, invoke, isolated, begin });
  }

  async #begin(phase: PhaseDefinition, scope: PhaseScope): Promise<NotBegun | undefined> {
    if (!(await this.#save([startOf(phase)], overallProgress(0, scope)))) return { status: 'lost' };
    if (this.#requested !== undefined) this.#run.stop(this.#requested);
    await this.#run.check?.();
    return this.#run.signal.aborted ? { status: 'stopped' } : undefined;
  }

  /** Ends one phase and starts the next in one write, unless a decision is needed in between. */
  async #store(phase: PhaseDefinition, scope: PhaseScope, end: StoredEnd): Promise<boolean> {
    this.#remember(phase.name, end);
    // Progress in flight belongs to the running phase.
    await this.#job.parts.effects().flush();
    if (end.status === 'failed' && !phase.tolerateFailure) return this.#save([toChange(phase.name, end)], undefined);
    const next = this.#job.phases[scope.index + 1];
    const joins = next !== undefined && next.when === undefined && !this.#isDone(next) && !this.#run.signal.aborted;
    this.#begun = joins ? next.name : undefined;
    const changes = [toChange(phase.name, end), ...(joins ? [startOf(next)] : [])];
    return this.#save(changes, overallProgress(100, scope));
  }

  /** Returns false if the lease is lost. */
  async #save(changes: PhaseChange[], progress: number | undefined): Promise<boolean> {
    const saved = await this.#job.store.save(changes, progress);
    this.#requested = saved && requestedStop(saved);
    return saved !== undefined;
  }

  #lost(): HandlerEnd {
    this.#run.stop({ kind: 'leaseLost' });
    return stoppedBy({ kind: 'leaseLost' });
  }

  /** The status of the interrupted phase (pending, failed or cancelled) is written with the outcome. */
  #stopped(): HandlerEnd {
    return stoppedBy(stopReasonOf(this.#run.signal) ?? { kind: 'canceled' });
  }
}

/** Fences every write with the lease of the attempt. */
export function databasePhaseStore({ db, tenant, job, leaseId }: HandlerRun): PhaseStore {
  const held = { jobId: job.id, leaseId };
  return {
    open: (names) => openPhases(db, tenant.schema, held, names),
    async save(changes, progress) {
      const write = () => savePhases(db, tenant.schema, held, changes, progress, `worker:${job.leaseOwner}`);
      // While a tenant moves between nodes, a fenced write can miss an existing row. This checks the row and writes
      // again.
      return (await write()) ?? ((await isHeld(db, tenant.schema, held)) ? write() : undefined);
    },
  };
}

/** Finds phases and calls of earlier runs that the current code does not have, for example after a deploy. */
function findMissing(rows: readonly StoredPhase[], names: readonly string[]): JobError | undefined {
  const isStep = ({ kind = 'phase' }: StoredPhase) => kind !== 'phase';
  const hasResult = ({ status }: StoredPhase) => status === 'completed' || status === 'partial';
  const missing = rows.find((row) => isStep(row) || (hasResult(row) && !names.includes(row.name)));
  if (missing === undefined) return undefined;
  const what = isStep(missing) ? 'made the durable call' : 'completed the phase';
  return jobError('STEP_MISSING', `An earlier run ${what} "${missing.name}"; the code of this one does not have it.`);
}

function stoppedBy(reason: StopReason): HandlerEnd {
  return { kind: 'failed', error: toJobError(new JobStopped(reason)), recoverable: false };
}

function startOf(phase: PhaseDefinition): PhaseChange {
  return { name: phase.name, status: 'running', progress: 0 };
}

function toChange(name: string, end: StoredEnd): PhaseChange {
  switch (end.status) {
    case 'completed':
    case 'partial':
      return { name, status: end.status, progress: 100, result: end.result, message: end.message };
    case 'skipped':
      return { name, status: 'skipped', message: end.message };
    case 'failed':
      return { name, status: 'failed', error: end.error };
  }
}

/** SUCCESS if all phases completed or were skipped, PARTIAL if some failed, ERROR if none completed. */
function overallEnd(ends: Map<string, StoredEnd>, results: Record<string, unknown>): HandlerEnd {
  const errors: Record<string, JobError> = {};
  let completed = 0;
  for (const [name, end] of ends) {
    if (end.status === 'completed' || end.status === 'partial') completed += 1;
    if (end.status === 'partial') errors[name] = jobError('PARTIAL', end.message ?? 'It ended partially');
    // The stack trace is kept with the phase.
    if (end.status === 'failed') errors[name] = withoutTrace(end.error);
  }
  const names = Object.keys(errors);
  if (names.length === 0) return { kind: 'completed', result: results };
  const details = names.map((name) => `${name} (${errors[name]?.message})`).join(', ');
  const error = jobError('PHASES_FAILED', `Not all phases completed: ${details}`, { phases: errors });
  return completed > 0 ? { kind: 'partial', result: results, error } : { kind: 'failed', error, recoverable: false };
}
