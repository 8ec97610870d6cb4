// Migrates the control schema and every tenant's schema to the version of this code: at boot and by `leasehold migrate`.
// Safe to run in any number of processes at once.
import type { Database } from '../database/database.ts';
import { migrateControl } from '../database/migrate.ts';
import { type MigrateAllReport, migrateAllTenants } from '../database/migrate-tenants.ts';
import type { Logger } from '../kernel/logger.ts';
import { readAllTenants } from './tenant-store.ts';

export interface MigrateEverythingReport extends MigrateAllReport {
  /** Files applied to the control schema by this call. */
  control: string[];
}

export async function migrateEverything(
  db: Database,
  options: { concurrency: number; logger: Logger },
): Promise<MigrateEverythingReport> {
  const control = await migrateControl(db, options.logger);
  const tenants = await readAllTenants(db);
  // Not those that are being deleted: migrating would create their schema again after it was dropped.
  const schemaNames = tenants.filter(({ status }) => status !== 'DELETING').map(({ schemaName }) => schemaName);
  return { control, ...(await migrateAllTenants(db, schemaNames, options)) };
}
