// Migrates many tenants with bounded parallelism. One tenant's failure is reported and stops no
// other; a second run takes up what is left, because each schema keeps its own journal.
import pLimit from 'p-limit';
import type { Logger } from '../kernel/logger.ts';
import type { Database } from './database.ts';
import { type MigrateOptions, migrateTenant, schemasInStep } from './migrate.ts';

export interface MigrateAllOptions extends MigrateOptions {
  concurrency: number;
  logger: Logger;
}

export interface MigrateAllReport {
  /** Schemas that this call changed. */
  migrated: string[];
  /** Schemas that needed nothing. */
  unchanged: string[];
  failed: { schemaName: string; error: unknown }[];
}

// One line per second is progress; one line per tenant is noise.
const progressEveryMs = 1_000;

export async function migrateAllTenants(
  db: Database,
  schemaNames: string[],
  options: MigrateAllOptions,
): Promise<MigrateAllReport> {
  const report: MigrateAllReport = { migrated: [], unchanged: [], failed: [] };
  const limit = pLimit(options.concurrency);
  let lastLineAt = performance.now();
  const migrateOne = async (schemaName: string) => {
    try {
      const applied = await migrateTenant(db, schemaName, options);
      (applied.length > 0 ? report.migrated : report.unchanged).push(schemaName);
    } catch (error) {
      report.failed.push({ schemaName, error });
      options.logger.error({ err: error, schema: schemaName }, 'tenant migration failed');
    }
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
