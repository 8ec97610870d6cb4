// The stored calls of one run, durable calls or phases: what earlier runs have stored, what this one stores, and the stop
// that the store has reported with its last answer.
import type { StepChange } from '../jobs/attempt/save-steps.ts';
import type { StoredStep } from '../jobs/attempt/steps.ts';
import type { JobErrorCode } from '../jobs/model/job-errors.ts';
import { Fatal } from './handler-errors.ts';
import type { StepStore } from './step-store.ts';
import { JobStopped, type StopReason } from './stop-reason.ts';

export class StoredCalls {
  readonly #store: () => StepStore;
  /** The heartbeat may not have reported it yet. */
  #requested: StopReason | undefined;

  constructor(store: () => StepStore) {
    this.#store = store;
  }

  /** By name, in their order. */
  async load(): Promise<ReadonlyMap<string, StoredStep>> {
    const { steps, stop } = await this.#store().load();
    this.#requested = stop;
    return new Map(steps.map((step) => [step.name, step]));
  }

  async save(changes: readonly StepChange[]): Promise<void> {
    this.#requested = await this.#store().save(changes);
  }

  /** Nothing begins after a stop was requested, even if the run has not been stopped yet. */
  async stopIfRequested(): Promise<void> {
    if (this.#requested === undefined) return;
    await this.#store().stop(this.#requested);
    throw new JobStopped(this.#requested);
  }
}

/** Throws if an earlier run made a call, or completed a phase, that this one does not have, for example after a deploy. */
export function throwIfMissing(
  stored: Iterable<StoredStep>,
  isPresent: (step: StoredStep) => boolean,
  thisRun: string,
): void {
  for (const step of stored) {
    // Phases are inserted before they run, so only a phase with a result counts as left out.
    const counts = step.kind !== 'phase' || step.status === 'completed' || step.status === 'partial';
    if (!counts || isPresent(step)) continue;
    const what = step.kind === 'phase' ? 'completed the phase' : 'made the durable call';
    throw stepError('STEP_MISSING', `An earlier run ${what} "${step.name}"; ${thisRun}.`);
  }
}

export function stepError(code: JobErrorCode & `STEP_${string}`, message: string): Fatal {
  return new Fatal(message, { code });
}
