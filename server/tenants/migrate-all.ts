// Migrates the control schema and every tenant's schema to the version of this code: at boot and by `leasehold
// migrate`. Safe to run in any number of processes at once. A tenant that fails is reported and stops no other; the
// next run continues with it, because each schema keeps its own journal.
import pLimit from 'p-limit';
import type { Database } from '../database/database.ts';
import { type MigrateOptions, migrateControl, migrateTenant, schemasInStep } from '../database/migrations/migrate.ts';
import { continueNumbers } from '../database/migrations/restored-numbers.ts';
import type { Logger } from '../kernel/logger.ts';
import { readAllTenants } from './tenant-store.ts';

export interface MigrateEverythingReport extends MigrateAllReport {
  /** Files applied to the control schema by this call. */
  control: string[];
}

export async function migrateEverything(
  db: Database,
  options: Pick<MigrateAllOptions, 'concurrency' | 'logger' | 'onProgress'>,
): Promise<MigrateEverythingReport> {
  const control = await migrateControl(db, options.logger);
  const tenants = await readAllTenants(db);
  // Excludes tenants that are being deleted, because migrating would create their schema again after it was dropped.
  const schemaNames = tenants.filter(({ status }) => status !== 'DELETING').map(({ schemaName }) => schemaName);
  const report = await migrateAllTenants(db, schemaNames, options);
  await continueNumbers(db, [...report.unchanged, ...report.migrated], options.logger);
  return { control, ...report };
}

interface MigrateAllOptions extends MigrateOptions {
  concurrency: number;
  logger: Logger;
  /** Called after each tenant. */
  onProgress?(done: number, total: number): void;
}

interface MigrateAllReport {
  /** Schemas that this call changed. */
  migrated: string[];
  /** Schemas that needed no migration. */
  unchanged: string[];
  failed: { schemaName: string; error: unknown }[];
}

// One line per second is progress; one line per tenant is noise.
const progressEveryMs = 1_000;

/** At most `concurrency` at once, or one in a cluster. @internal */
export async function migrateAllTenants(
  db: Database,
  schemaNames: string[],
  options: MigrateAllOptions,
): Promise<MigrateAllReport> {
  const report: MigrateAllReport = { migrated: [], unchanged: [], failed: [] };
  // In a cluster, changes of the schema wait for each other longer than a statement may wait for a lock.
  const limit = pLimit(db.sharded ? 1 : options.concurrency);
  let lastLineAt = performance.now();
  const migrateOne = async (schemaName: string) => {
    try {
      const applied = await migrateTenant(db, schemaName, options);
      (applied.length > 0 ? report.migrated : report.unchanged).push(schemaName);
    } catch (error) {
      report.failed.push({ schemaName, error });
      options.logger.error({ err: error, schema: schemaName }, 'tenant migration failed');
    }
    const { migrated, unchanged, failed } = report;
    options.onProgress?.(migrated.length + unchanged.length + failed.length, schemaNames.length);
    if (performance.now() - lastLineAt < progressEveryMs) return;
    lastLineAt = performance.now();
    options.logger.info({ ...counts(report), total: schemaNames.length }, 'migrating tenants');
  };
  const inStep = await schemasInStep(db, schemaNames, options);
  report.unchanged.push(...inStep);
  const rest = schemaNames.filter((schemaName) => !inStep.has(schemaName));
  await Promise.all(rest.map((schemaName) => limit(() => migrateOne(schemaName))));
  options.logger.info({ ...counts(report), total: schemaNames.length }, 'tenants migrated');
  return report;
}

function counts(report: MigrateAllReport): Record<string, number> {
  return { migrated: report.migrated.length, unchanged: report.unchanged.length, failed: report.failed.length };
}
