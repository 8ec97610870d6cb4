// The sweeper recovers expired leases and claims, fails jobs that exceeded their deadline, resumes targets whose pause
// has ended, and repairs orphans and lanes without a head. Every daemon may run it; nothing is swept twice.

import type { Database } from '../database/database.ts';
import { isDatabaseLost } from '../database/sql-errors.ts';
import type { CommitSignals } from '../jobs/commit-signals.ts';
import { expireUnstartedJobs, repairOrphans } from '../jobs/finish/due-jobs.ts';
import { endTimedOutLease, findExpiredLeases, findTimedOutLeases, recoverLease } from '../jobs/finish/recover.ts';
import { concludeOverdueCanaries } from '../jobs/lanes/conclude-canaries.ts';
import { findHeadlessLanes, lockTargets, promote } from '../jobs/lanes/lane.ts';
import { resumeDueTargets } from '../jobs/lanes/target.ts';
import { defaultTimeout } from '../jobs/model/job.ts';
import { budgetRules } from '../jobs/model/job-budget.ts';
import { monotonicMs } from '../kernel/clock.ts';
import { firstUuid } from '../kernel/limits.ts';
import type { Logger } from '../kernel/logger.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { msOrInfinity } from './probes.ts';
import type { PollResult } from './tenant-poller.ts';

export interface SweeperOptions {
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  actor: string;
  staleLeaseGraceSeconds: number;
  orphanAfterSeconds: number;
  /** Duration of a lease that is reopened. */
  leaseSeconds: number;
  tokenLimit: number;
  /** For how long after its start a daemon makes no repair scans. They would delay its first claims. */
  repairDelayMs?: number;
  /** The number of live daemons, which share the repair scans; 1 by default. */
  daemons?(): number;
  /** The timeout of an attempt if neither the job nor its tenant sets one; 0 means no limit. */
  timeoutSeconds: number;
  signals: Pick<CommitSignals, 'jobsWritten'>;
  observe(tenant: Tenant, kind: SweptKind, count: number): void;
}

type SweptKind = 'leases' | 'expired' | 'targets' | 'orphans' | 'lanes';

const batch = 100;
const repairSlice = 1000;
// Slices of `repairOrphans` in the order of the primary key, one statement each, so that a sweep reads a bounded number
// of jobs.
const orphanSlicesPerSweep = 10;
// Repairs look for states that should never exist, so a few tenants per pass are enough.
const repairsPerPass = 4;
// A tenant without new events is scanned again after this time by one of the daemons, for changes made directly in SQL.
const rescanMs = 600_000;

interface RepairPosition {
  orphansFrom: string;
  lanesFrom: string;
  /** The tenant was polled again since the current scan of its jobs began. */
  changed: boolean;
  /** When the last scan of all its jobs ended. */
  scannedAtMs: number;
  /** The number of owned jobs beyond those of active leases, by the last probe without new events. */
  unleased: number;
}

export class Sweeper {
  #options: SweeperOptions;
  readonly #repairFrom: number;
  #positions = new Map<string, RepairPosition>();
  /** Tenants whose repair scan has not reached its end, longest waiting first. */
  #unrepaired = new Set<string>();
  /** Tenants that are scanned first: the log counts more owned jobs than their leases name. */
  #missing = new Set<string>();

  constructor(options: SweeperOptions) {
    this.#options = options;
    this.#repairFrom = performance.now() + (options.repairDelayMs ?? 0);
  }

  /** Includes suspended tenants, whose expired leases must not hold lanes forever. */
  async sweep(found: readonly Omit<PollResult, 'wasIdle'>[]): Promise<void> {
    const graceMs = this.#options.staleLeaseGraceSeconds * 1000;
    for (const { tenant, results } of found) {
      const { lease_ms, timeouts, expires_ms, resumes_ms, canary_ended } = results;
      if (msOrInfinity(lease_ms) < -graceMs) await this.#runStep(tenant, 'leases', () => this.#sweepLeases(tenant));
      if (timeouts === true) await this.#runStep(tenant, 'leases', () => this.#sweepTimeouts(tenant));
      if (msOrInfinity(expires_ms) < 0) await this.#runStep(tenant, 'expired', () => this.#sweepExpired(tenant));
      if (msOrInfinity(resumes_ms) <= 0) await this.#runStep(tenant, 'targets', () => this.#sweepPauses(tenant));
      if (canary_ended === true) await this.#runStep(tenant, 'targets', () => this.#sweepCanaries(tenant));
    }
    for (const { tenant, results, hasNewEvents } of found) {
      const position = this.#positionOf(tenant);
      const unleased = hasNewEvents ? 0 : Number(results.unleased ?? 0);
      // The same number again is an error of the counts: the scan found no such job.
      const isMissing = unleased > 0 && unleased !== position.unleased;
      position.unleased = unleased;
      const isOverdue = monotonicMs() >= position.scannedAtMs + rescanMs * this.#daemons;
      if (!hasNewEvents && !isMissing && !isOverdue) continue;
      (isMissing ? this.#missing : this.#unrepaired).add(tenant.id);
      position.changed = true;
    }
    await this.#repairNext();
  }

  async #repairNext(): Promise<void> {
    if (performance.now() < this.#repairFrom) return;
    const tenants = new Map(this.#tenants().map((tenant) => [tenant.id, tenant]));
    const perPass = Math.max(1, Math.floor(repairsPerPass / this.#daemons));
    const ids = [...[...this.#missing].slice(0, repairsPerPass), ...[...this.#unrepaired].slice(0, perPass)];
    for (const id of new Set(ids)) {
      const waiting = this.#missing.has(id) ? this.#missing : this.#unrepaired;
      this.#missing.delete(id);
      this.#unrepaired.delete(id);
      const tenant = tenants.get(id);
      if (tenant === undefined) this.#positions.delete(id);
      else if (!(await this.#repairTenant(tenant))) waiting.add(id);
    }
  }

  #positionOf(tenant: Tenant): RepairPosition {
    const unscanned = {
      ...{ orphansFrom: firstUuid, lanesFrom: '', changed: false, unleased: 0 },
      scannedAtMs: Number.NEGATIVE_INFINITY,
    };
    const position = this.#positions.get(tenant.id) ?? unscanned;
    this.#positions.set(tenant.id, position);
    return position;
  }

  get #daemons(): number {
    return this.#options.daemons?.() ?? 1;
  }

  #dbOf(tenant: Tenant): Database {
    return this.#options.db.forTenant(tenant.schema);
  }

  #tenants(): Tenant[] {
    return this.#options.registry.list().filter((t) => t.status === 'ACTIVE' || t.status === 'SUSPENDED');
  }

  /** Scans some slices of the tenant for orphans and for lanes without a head. Returns false if the scan must go on. */
  async #repairTenant(tenant: Tenant): Promise<boolean> {
    const position = this.#positionOf(tenant);
    if (position.orphansFrom === firstUuid) position.changed = false;
    await this.#runStep(tenant, 'orphans', () => this.#repairOrphans(tenant, position));
    await this.#runStep(tenant, 'lanes', () => this.#repairLanes(tenant, position));
    if (position.orphansFrom === firstUuid) position.scannedAtMs = monotonicMs();
    return position.orphansFrom === firstUuid && !position.changed;
  }

  async #repairOrphans(tenant: Tenant, position: RepairPosition): Promise<number> {
    const { logger, actor, orphanAfterSeconds, leaseSeconds } = this.#options;
    const db = this.#dbOf(tenant);
    let repaired = 0;
    for (let slice = 0; slice < orphanSlicesPerSweep; slice++) {
      const options = { actor, afterSeconds: orphanAfterSeconds, leaseSeconds, from: position.orphansFrom };
      const { queued, orphans, reopened, next } = await repairOrphans(db, tenant.schema, options);
      if (queued > 0) this.#options.signals.jobsWritten(tenant);
      position.orphansFrom = next ?? firstUuid;
      if (reopened.length > 0) {
        const fields = { tenant: tenant.slug, leaseIds: reopened };
        logger.error(fields, 'jobs had no active lease; their leases were reopened');
      }
      repaired += orphans + reopened.length;
      if (next === undefined) break;
    }
    return repaired;
  }

  /** A failure of one tenant is logged and does not keep others from being swept. */
  async #runStep(tenant: Tenant, kind: SweptKind, sweep: () => Promise<number>): Promise<void> {
    try {
      const count = await sweep();
      this.#options.observe(tenant, kind, count);
      if (count > 0) this.#options.signals.jobsWritten(tenant);
    } catch (error) {
      if (isDatabaseLost(error)) throw error;
      this.#options.logger.error({ err: error, tenant: tenant.slug, sweep: kind }, 'sweep failed');
    }
  }

  async #sweepLeases(tenant: Tenant): Promise<number> {
    const { logger, actor, staleLeaseGraceSeconds: graceSeconds } = this.#options;
    const db = this.#dbOf(tenant);
    const rules = budgetRules(tenant, this.#options.tokenLimit);
    let count = 0;
    let after = firstUuid;
    for (;;) {
      const leases = await findExpiredLeases(db, tenant.schema, graceSeconds, after, batch);
      for (const lease of leases) {
        after = lease.id;
        try {
          const recovered = await recoverLease(db, tenant.schema, lease, { actor, graceSeconds, ...rules });
          count += recovered.jobs;
          if (recovered.jobs > 0) {
            logger.warn(
              { tenant: tenant.slug, leaseId: lease.id, owner: lease.owner, ...recovered },
              'expired lease recovered',
            );
          }
        } catch (error) {
          if (isDatabaseLost(error)) throw error;
          // A lease that cannot be recovered must not keep others from being recovered.
          logger.error({ err: error, tenant: tenant.slug, leaseId: lease.id }, 'expired lease could not be recovered');
        }
      }
      if (leases.length < batch) return count;
    }
  }

  /** Ends attempts of remote workers that exceeded the timeout of their job. */
  async #sweepTimeouts(tenant: Tenant): Promise<number> {
    const { actor } = this.#options;
    const db = this.#dbOf(tenant);
    const rules = budgetRules(tenant, this.#options.tokenLimit);
    const timeoutSeconds = defaultTimeout(tenant, this.#options.timeoutSeconds);
    let count = 0;
    for (const lease of await findTimedOutLeases(db, tenant.schema, timeoutSeconds, batch)) {
      count += (await endTimedOutLease(db, tenant.schema, lease, { actor, timeoutSeconds, ...rules })).jobs;
    }
    return count;
  }

  async #sweepExpired(tenant: Tenant): Promise<number> {
    let total = 0;
    for (;;) {
      const count = await expireUnstartedJobs(this.#dbOf(tenant), tenant.schema, this.#options.actor, batch);
      total += count;
      if (count < batch) return total;
    }
  }

  async #sweepPauses(tenant: Tenant): Promise<number> {
    return (await resumeDueTargets(this.#dbOf(tenant), tenant.schema, this.#options.actor)).length;
  }

  #sweepCanaries(tenant: Tenant): Promise<number> {
    return concludeOverdueCanaries(this.#dbOf(tenant), tenant.schema, this.#options.actor);
  }

  async #repairLanes(tenant: Tenant, position: RepairPosition): Promise<number> {
    const { logger } = this.#options;
    const db = this.#dbOf(tenant);
    const { headless, next } = await findHeadlessLanes(db, tenant.schema, position.lanesFrom, repairSlice);
    position.lanesFrom = next ?? '';
    let repaired = 0;
    for (const targetId of headless) {
      const promoted = await db.transaction(async (tx) => {
        await lockTargets(tx, tenant.schema, [targetId]);
        return promote(tx, tenant.schema, [targetId]);
      });
      if (promoted.length === 0) continue; // another transaction promoted a job between the scan and the lock
      repaired += 1;
      logger.error({ tenant: tenant.slug, targetId, jobId: promoted[0]?.id }, 'lane had no head and was repaired');
    }
    return repaired;
  }
}
