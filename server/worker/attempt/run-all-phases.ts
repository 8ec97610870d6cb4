// Runs a job of ordered phases: durable steps whose names and order are known beforehand. Each phase is stored when it
// ends, and an attempt starts with the first phase that is not done. The ends of all phases decide the end of the job.

import { throwIfMustStop } from '../../durable/stop-reason.ts';
import { StoredCalls, stepError, throwIfMissing } from '../../durable/stored-calls.ts';
import type { PhaseChange } from '../../jobs/attempt/save-steps.ts';
import type { StoredStep } from '../../jobs/attempt/steps.ts';
import { type JobError, withoutTrace } from '../../jobs/model/job.ts';
import { jobError } from '../../jobs/model/job-errors.ts';
import type { PhaseDefinition } from '../handlers/define-job.ts';
import { type HandlerEnd, overallProgress, type PhaseScope } from './handler-run.ts';
import { type PhaseEnd, type PhaseRun, runPhase } from './run-phase.ts';

export interface PhasedJob extends Pick<PhaseRun, 'run' | 'parts' | 'invoke' | 'isolated'> {
  phases: readonly PhaseDefinition[];
}

interface PlacedPhase {
  definition: PhaseDefinition;
  scope: PhaseScope;
  position: number;
  /** The row of an earlier attempt, or of the enqueue. */
  stored: StoredStep | undefined;
  /** The end in an earlier attempt, after which the phase does not run again. */
  done: PhaseEnd | undefined;
  /** Over all attempts. */
  tries: number;
}

/**
 * Rejects with `JobStopped` if the attempt must stop. The new status of the running phase is written with the outcome.
 */
export async function runPhases(job: PhasedJob): Promise<HandlerEnd> {
  return new PhaseRunner(job).run();
}

class PhaseRunner {
  readonly #job: PhasedJob;
  readonly #calls: StoredCalls;
  readonly #ends = new Map<string, PhaseEnd>();
  readonly #results: Record<string, unknown> = {};
  /** The phase was marked as running in the write that ended the phase before it. */
  #begun: PlacedPhase | undefined;

  constructor(job: PhasedJob) {
    this.#job = job;
    this.#calls = new StoredCalls(() => job.parts.effects().steps);
  }

  async run(): Promise<HandlerEnd> {
    const phases = await this.#open();
    for (const phase of phases) {
      if (phase.done !== undefined) {
        this.#remember(phase, phase.done);
        continue;
      }
      await this.#calls.stopIfRequested();
      // The process may have been suspended since the answer to the last write.
      await throwIfMustStop(this.#job.run);
      const end = await this.#runOne(phase);
      await this.#store(phase, end, phases[phase.scope.index + 1]);
      if (end.status === 'failed' && !phase.definition.tolerateFailure) {
        return { kind: 'failed', error: { ...end.error, phase: phase.scope.name }, recoverable: end.recoverable };
      }
    }
    return overallEnd(this.#ends, this.#results);
  }

  /** Finds the place of each phase, and stores those that have no row yet or were elsewhere in the last attempt. */
  async #open(): Promise<PlacedPhase[]> {
    const names = this.#job.phases.map(({ name }) => name);
    const stored = await this.#calls.load();
    const isPresent = ({ kind, name }: StoredStep) => kind === 'phase' && names.includes(name);
    throwIfMissing(stored.values(), isPresent, 'the code of this one does not have it');
    const phases = placePhases(this.#job.phases, stored);
    const moved = phases.filter((phase) => phase.stored?.position !== phase.position);
    if (moved.length > 0) await this.#calls.save(moved.map((phase) => ({ ...rowOf(phase), status: 'pending' })));
    return phases;
  }

  #remember({ scope: { name } }: PlacedPhase, end: PhaseEnd): void {
    this.#ends.set(name, end);
    if (end.status === 'completed' || end.status === 'partial') this.#results[name] = end.result;
  }

  async #runOne(phase: PlacedPhase): Promise<PhaseEnd> {
    const { parts } = this.#job;
    const { definition, scope } = phase;
    const results = this.#results;
    if (definition.when !== undefined) {
      const wanted = await definition.when({ payload: parts.payload, phaseResults: () => ({ ...results }) });
      if (!wanted) return { status: 'skipped', message: 'Its condition was false' };
    }
    const begin = async () => {
      await this.#calls.save([{ ...startOf(phase), overall: overallProgress(0, scope) }]);
      await this.#calls.stopIfRequested();
    };
    if (this.#begun !== phase) await begin();
    return runPhase({ ...this.#job, phase: definition, parts: { ...parts, phase: scope, results }, beginAgain: begin });
  }

  /** Ends one phase and starts the next in one write, unless a decision is needed in between. */
  async #store(phase: PlacedPhase, end: PhaseEnd, next: PlacedPhase | undefined): Promise<void> {
    this.#remember(phase, end);
    // Progress in flight belongs to the running phase.
    await this.#job.parts.effects().flush();
    const ended = endOf(phase, end);
    if (end.status === 'failed' && !phase.definition.tolerateFailure) return this.#calls.save([ended]);
    const joins = next !== undefined && next.definition.when === undefined && next.done === undefined;
    this.#begun = joins && !this.#job.run.signal.aborted ? next : undefined;
    const overall = overallProgress(100, phase.scope);
    await this.#calls.save([{ ...ended, overall }, ...(this.#begun === undefined ? [] : [startOf(this.#begun)])]);
  }
}

/**
 * A phase that is done stays where it was; each of the others follows the one before it. Throws if the code has a phase
 * before one that is done, which was not there when that ended: for example after a deploy.
 */
function placePhases(definitions: readonly PhaseDefinition[], stored: ReadonlyMap<string, StoredStep>): PlacedPhase[] {
  let next = 0;
  return definitions.map((definition, index) => {
    const { name } = definition;
    const row = stored.get(name);
    const done = row && doneBefore(row);
    const position = row !== undefined && done !== undefined ? row.position : next;
    if (position < next) {
      const before = definitions[index - 1]?.name;
      throw stepError(
        'STEP_ORDER_CHANGED',
        `An earlier run ended the phase "${name}" first; the code of this one has "${before}" before it.`,
      );
    }
    next = position + 1;
    const scope = { name, index, count: definitions.length };
    return { definition, scope, position, stored: row, done, tries: row?.attempt ?? 0 };
  });
}

function doneBefore({ status, result, message }: StoredStep): PhaseEnd | undefined {
  if (status === 'completed' || status === 'partial') return { status, result, message: message ?? undefined };
  return status === 'skipped' ? { status, message: message ?? '' } : undefined;
}

function rowOf({ scope: { name }, position }: PlacedPhase): Pick<PhaseChange, 'kind' | 'name' | 'position'> {
  return { kind: 'phase', name, position };
}

function startOf(phase: PlacedPhase): PhaseChange {
  phase.tries += 1;
  return { ...rowOf(phase), status: 'running', attempt: phase.tries };
}

function endOf(phase: PlacedPhase, end: PhaseEnd): PhaseChange {
  if (end.status === 'failed') return { ...rowOf(phase), status: 'failed', error: end.error };
  return { ...rowOf(phase), ...end };
}

/** SUCCESS if all phases completed or were skipped, PARTIAL if some failed, ERROR if none completed. */
function overallEnd(ends: Map<string, PhaseEnd>, results: Record<string, unknown>): HandlerEnd {
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
