// A named course of events that once broke a promise.
import type { World } from '../world.ts';

export interface Scenario {
  name: string;
  title: string;
  /** Needs a database server and a standby of its own. */
  standby?: boolean;
  /** Ends with no fault in force; the run's end is the same for all. */
  run(world: World): Promise<void>;
}

/** The claim of a daemon, as it is sent. */
export const claimText = /found as materialized/;
