// The sweeper: takes back expired leases and claims, fails what waited too long, ends pauses that
// ran out, and looks for what should never be. Every daemon may run it; nothing is swept twice.
import { type Database, isConnectionError } from '../database/database.ts';
import { expireWaitingJobs, repairOrphans } from '../jobs/finish/expire.ts';
import { endTimedOutLease, findExpiredLeases, findTimedOutLeases, recoverLease } from '../jobs/finish/recover.ts';
import { findHeadlessLanes, lockTargets, promote } from '../jobs/lanes/lane.ts';
import { resumeDueTargets } from '../jobs/lanes/target.ts';
import { defaultTimeout, isTimedOutSql } from '../jobs/model/timeout.ts';
import type { Logger } from '../kernel/logger.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import {
  msOrInfinity,
  msUntil,
  type ProbeResults,
  type Probes,
  probeTenants,
  type TenantProbeResults,
} from './probe-tenants.ts';
import type { PolledTask } from './tenant-poller.ts';

export interface SweeperOptions {
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  actor: string;
  staleLeaseGraceSeconds: number;
  orphanAfterSeconds: number;
  /** How long a lease that is opened again lasts. */
  leaseSeconds: number;
  tokenLimit: number;
  /** Of an attempt, where neither the job nor its tenant has one; 0: no limit. */
  timeoutSeconds: number;
  everyMs: number;
  /** There may be something to claim now. */
  wake(slug: string): void;
  observe: SweepObserver;
}

export interface SweepObserver {
  swept(tenant: Tenant, kind: 'leases' | 'expired' | 'targets' | 'orphans' | 'lanes', count: number): void;
}

const questions = (timeoutSeconds: number): Probes => ({
  lease_ms: (s) => `(select ${msUntil('min(expires_at)')} from ${s}.leases where state = 'ACTIVE')`,
  timeouts: (s, tenant) =>
    `exists (select 1 from ${s}.leases l join ${s}.jobs j on j.id = l.job_ids[1] and j.lease_id = l.id
              where l.state = 'ACTIVE' and l.kind = 'remote' and j.status = 'RUNNING'
                and ${isTimedOutSql(String(defaultTimeout(tenant, timeoutSeconds)))})`,
  expires_ms: (s) =>
    `(select ${msUntil('expires_at')} from ${s}.jobs where expires_at is not null and status in ('PENDING', 'QUEUED')
       order by expires_at limit 1)`,
  resumes_ms: (s) =>
    `(select ${msUntil('paused_until')} from ${s}.targets where paused_until is not null order by paused_until limit 1)`,
});

const firstId = '00000000-0000-0000-0000-000000000000';
const batch = 100;
const repairSlice = 1000;
// What the repair looks for should never be there: of many tenants, few are searched in each pass.
const repairsPerPass = 4;

interface RepairPosition {
  orphansFrom: string;
  lanesFrom: string;
  /** Something was heard of the tenant since its jobs were last searched from the first on. */
  heard: boolean;
}

export class Sweeper implements PolledTask {
  readonly name = 'sweep';
  readonly suspended = true;
  readonly probes: Probes;
  #options: SweeperOptions;
  #positions = new Map<string, RepairPosition>();
  /** Tenants that are not searched to their end yet, the longest waiting first. */
  #unrepaired = new Set<string>();

  constructor(options: SweeperOptions) {
    this.#options = options;
    this.probes = questions(options.timeoutSeconds);
  }

  get everyMs(): number {
    return this.#options.everyMs;
  }

  /** One pass over all tenants. Suspended ones too: their expired leases must not hold lanes for ever. */
  async runOnce(): Promise<void> {
    await this.onResults(await probeTenants(this.#options.db, this.#tenants(), this.probes));
  }

  /** A lease may end at any time without an event: its holder falls silent. */
  isIdle({ lease_ms, expires_ms, resumes_ms }: ProbeResults, restMs: number): boolean {
    return lease_ms === null && msOrInfinity(expires_ms) > restMs && msOrInfinity(resumes_ms) > restMs;
  }

  async onResults(found: TenantProbeResults[]): Promise<void> {
    const graceMs = this.#options.staleLeaseGraceSeconds * 1000;
    for (const { tenant, results: answers } of found) {
      if (msOrInfinity(answers.lease_ms) < -graceMs)
        await this.#runStep(tenant, 'leases', () => this.#sweepLeases(tenant));
      if (answers.timeouts === true) await this.#runStep(tenant, 'leases', () => this.#sweepTimeouts(tenant));
      if (msOrInfinity(answers.expires_ms) < 0)
        await this.#runStep(tenant, 'expired', () => this.#sweepExpired(tenant));
      if (msOrInfinity(answers.resumes_ms) <= 0)
        await this.#runStep(tenant, 'targets', () => this.#sweepPauses(tenant));
    }
    for (const { tenant } of found) {
      this.#unrepaired.add(tenant.id);
      this.#positionOf(tenant).heard = true;
    }
    await this.#repairNext();
  }

  async #repairNext(): Promise<void> {
    const tenants = new Map(this.#tenants().map((tenant) => [tenant.id, tenant]));
    for (const id of [...this.#unrepaired].slice(0, repairsPerPass)) {
      this.#unrepaired.delete(id);
      const tenant = tenants.get(id);
      if (tenant === undefined) this.#positions.delete(id);
      else await this.repairTenant(tenant);
    }
  }

  #positionOf(tenant: Tenant): RepairPosition {
    const position = this.#positions.get(tenant.id) ?? { orphansFrom: firstId, lanesFrom: '', heard: false };
    this.#positions.set(tenant.id, position);
    return position;
  }

  #tenants(): Tenant[] {
    return this.#options.registry.list().filter((t) => t.status === 'ACTIVE' || t.status === 'SUSPENDED');
  }

  /** Looks at one slice of the tenant for orphans and for lanes without a head. */
  async repairTenant(tenant: Tenant): Promise<void> {
    const position = this.#positionOf(tenant);
    if (position.orphansFrom === firstId) position.heard = false;
    await this.#runStep(tenant, 'orphans', () => this.#repairOrphans(tenant, position));
    await this.#runStep(tenant, 'lanes', () => this.#repairLanes(tenant, position));
    if (position.orphansFrom !== firstId || position.heard) this.#unrepaired.add(tenant.id);
  }

  async #repairOrphans(tenant: Tenant, position: RepairPosition): Promise<number> {
    const { db, logger, actor, orphanAfterSeconds, leaseSeconds } = this.#options;
    const from = position.orphansFrom;
    const options = { actor, afterSeconds: orphanAfterSeconds, leaseSeconds, from };
    const { orphans, reopened, next } = await repairOrphans(db, tenant.schema, options);
    position.orphansFrom = next ?? firstId;
    if (reopened.length > 0) {
      logger.error(
        { tenant: tenant.slug, leaseIds: reopened },
        'jobs had no active lease; their leases were opened again',
      );
    }
    return orphans + reopened.length;
  }

  /** One tenant's trouble is not another's: it is logged and the pass goes on. */
  async #runStep(
    tenant: Tenant,
    kind: Parameters<SweepObserver['swept']>[1],
    sweep: () => Promise<number>,
  ): Promise<void> {
    try {
      const count = await sweep();
      this.#options.observe.swept(tenant, kind, count);
      if (count > 0) this.#options.wake(tenant.slug);
    } catch (error) {
      if (isConnectionError(error)) throw error;
      this.#options.logger.error({ err: error, tenant: tenant.slug, sweep: kind }, 'sweep failed');
    }
  }

  async #sweepLeases(tenant: Tenant): Promise<number> {
    const { db, logger, actor, staleLeaseGraceSeconds: graceSeconds } = this.#options;
    const tokenLimit = tenant.settings.token_limit ?? this.#options.tokenLimit;
    let count = 0;
    let after = firstId;
    for (;;) {
      const leases = await findExpiredLeases(db, tenant.schema, graceSeconds, after, batch);
      for (const lease of leases) {
        after = lease.id;
        try {
          const recovered = await recoverLease(db, tenant.schema, lease, { actor, graceSeconds, tokenLimit });
          count += recovered.jobs;
          if (recovered.jobs > 0) {
            logger.warn(
              { tenant: tenant.slug, leaseId: lease.id, owner: lease.owner, ...recovered },
              'expired lease recovered',
            );
          }
        } catch (error) {
          if (isConnectionError(error)) throw error;
          // A lease that cannot be ended must not keep the others from it.
          logger.error({ err: error, tenant: tenant.slug, leaseId: lease.id }, 'expired lease could not be recovered');
        }
      }
      if (leases.length < batch) return count;
    }
  }

  /** Attempts of remote workers that ran longer than their jobs allow. */
  async #sweepTimeouts(tenant: Tenant): Promise<number> {
    const { db, actor } = this.#options;
    const tokenLimit = tenant.settings.token_limit ?? this.#options.tokenLimit;
    const timeoutSeconds = defaultTimeout(tenant, this.#options.timeoutSeconds);
    let count = 0;
    for (const lease of await findTimedOutLeases(db, tenant.schema, timeoutSeconds, batch)) {
      count += (await endTimedOutLease(db, tenant.schema, lease, { actor, tokenLimit, timeoutSeconds })).jobs;
    }
    return count;
  }

  async #sweepExpired(tenant: Tenant): Promise<number> {
    let total = 0;
    for (;;) {
      const count = await expireWaitingJobs(this.#options.db, tenant.schema, this.#options.actor, batch);
      total += count;
      if (count < batch) return total;
    }
  }

  async #sweepPauses(tenant: Tenant): Promise<number> {
    return (await resumeDueTargets(this.#options.db, tenant.schema, this.#options.actor)).length;
  }

  async #repairLanes(tenant: Tenant, position: RepairPosition): Promise<number> {
    const { db, logger } = this.#options;
    const { headless, next } = await findHeadlessLanes(db, tenant.schema, position.lanesFrom, repairSlice);
    position.lanesFrom = next ?? '';
    let repaired = 0;
    for (const targetId of headless) {
      const promoted = await db.transaction(async (tx) => {
        await lockTargets(tx, tenant.schema, [targetId]);
        return promote(tx, tenant.schema, [targetId]);
      });
      if (promoted.length === 0) continue; // it moved on between the look and the lock
      repaired += 1;
      logger.error({ tenant: tenant.slug, targetId, jobId: promoted[0]?.id }, 'lane had no head and was repaired');
    }
    return repaired;
  }
}
