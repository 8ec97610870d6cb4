// `leasehold verify`: verifies seals, jobs and lanes of one tenant against its event log, in one read-only transaction
// with one snapshot. It blocks no writer and sees only committed changes.
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
  /** Events that a follower could not process and skipped, by follower. */
  setAside: Record<string, number>;
  /** The first thousand; `violationCount` counts all. */
  violations: Violation[];
  violationCount: number;
}

export interface VerifyOptions {
  /** A seal that was kept outside the database. */
  anchor?: Anchor;
}

// Reading a log of a hundred million events takes hours.
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
