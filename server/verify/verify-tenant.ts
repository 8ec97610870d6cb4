// `leasehold verify`: proves from the event log what the product promises, for one tenant, at one moment.
// A read-only transaction with one snapshot: it disturbs nobody and sees nothing half-done.
import type { Database } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { countSetAside } from '../events/log/set-aside.ts';
import { type JobsReport, verifyJobs } from './verify-jobs.ts';
import { type LanesReport, verifyLanes } from './verify-lanes.ts';
import { type Anchor, type SealReport, verifySeals } from './verify-seals.ts';
import { type Violation, Violations } from './violation.ts';

export interface Verification {
  seals: SealReport;
  jobs: JobsReport;
  lanes: LanesReport;
  /** Events that a follower could not process and passed by, by follower. */
  setAside: Record<string, number>;
  /** The first thousand; `violationCount` has all. */
  violations: Violation[];
  violationCount: number;
}

export interface VerifyOptions {
  /** A seal noted earlier, outside of the database. */
  anchor?: Anchor;
}

// A log of a hundred million events is read for hours.
const longTransaction = { timeoutMs: 24 * 3_600_000, idleTimeoutMs: 60_000 };

export async function verifyTenant(db: Database, schema: Schema, options: VerifyOptions = {}): Promise<Verification> {
  return db.transaction(async (tx) => {
    await tx.query('set transaction isolation level repeatable read, read only');
    const violations = new Violations();
    const seals = await verifySeals(tx, schema, violations, options.anchor);
    const pruned = seals.prunedSeals > 0;
    const jobs = await verifyJobs(tx, schema, pruned, violations);
    const lanes = await verifyLanes(tx, schema, pruned, violations);
    const setAside = await countSetAside(tx, schema);
    return { seals, jobs, lanes, setAside, violations: violations.list, violationCount: violations.count };
  }, longTransaction);
}
