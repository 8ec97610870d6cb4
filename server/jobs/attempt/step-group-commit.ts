// Reads stored calls and writes the results of steps and phases, in statements that the attempts of one tenant share.
// Each job is fenced by its own lease.
import type { Database } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { HeldJob } from '../claim/lease.ts';
import type { StopRequest } from '../model/job-values.ts';
import { alone, HeldGroups, type HeldRequest } from './held-groups.ts';
import { type LoadedSteps, loadSharedSteps, loadSteps } from './load-steps.ts';
import { type StepWrite, saveSteps } from './save-steps.ts';

interface SaveRequest extends StepWrite, HeldRequest {}

/** One per daemon. */
export class StepGroupCommit {
  readonly #saves: HeldGroups<SaveRequest, StopRequest | undefined>;
  readonly #loads: HeldGroups<HeldRequest, LoadedSteps | undefined>;

  constructor(db: Database) {
    this.#saves = new HeldGroups((schema, group) => saveGroup(db.forTenant(schema), schema, group));
    this.#loads = new HeldGroups((schema, group) => loadGroup(db.forTenant(schema), schema, group));
  }

  /**
   * Resolves after the commit, with the stop that people have requested, or undefined if the lease no longer owns the
   * job. `bytes` is the size of the results.
   */
  save(schema: Schema, write: StepWrite, bytes: number): Promise<StopRequest | undefined> {
    return this.#saves.add(schema, { ...write, bytes });
  }

  /** Returns undefined if the lease no longer owns the job. */
  load(schema: Schema, held: HeldJob): Promise<LoadedSteps | undefined> {
    return this.#loads.add(schema, { held, bytes: 0 });
  }
}

async function saveGroup(db: Database, schema: Schema, group: readonly SaveRequest[]) {
  const stops = await saveSteps(db, schema, group);
  // The job of a group of one was waited for, so its lease is lost if it is missing.
  const missing = countJobs(group) === 1 ? undefined : alone;
  return group.map(({ held }) => stops.get(held.jobId) ?? missing);
}

async function loadGroup(db: Database, schema: Schema, group: readonly HeldRequest[]) {
  const [first] = group;
  if (first !== undefined && countJobs(group) === 1) {
    const loaded = await loadSteps(db, schema, first.held);
    return group.map(() => loaded);
  }
  const loaded = await loadSharedSteps(
    db,
    schema,
    group.map(({ held }) => held),
  );
  return group.map(({ held }) => loaded.get(held.jobId) ?? alone);
}

function countJobs(group: readonly HeldRequest[]): number {
  return new Set(group.map(({ held }) => held.jobId)).size;
}
