// leasehold migrate: the control schema and all tenants, as a daemon does when it starts.
import type { Command } from 'commander';
import { errorMessage, problem } from '../../kernel/errors.ts';
import { migrateEverything } from '../../tenants/migrate-all.ts';
import type { Session } from '../session.ts';

export function addMigrateCommand(program: Command, session: Session): void {
  program
    .command('migrate')
    .description('bring the control schema and every tenant to the version of this program')
    .action(async () => {
      const db = await session.database();
      const report = await migrateEverything(db, {
        concurrency: session.config.migrateConcurrency,
        logger: session.logger,
      });
      const failed = report.failed.map(({ schemaName, error }) => ({
        schema: schemaName,
        reason: errorMessage(error),
      }));
      session.print(
        { control: report.control, migrated: report.migrated, unchanged: report.unchanged.length, failed },
        [
          `control schema: ${report.control.length === 0 ? 'up to date' : report.control.join(', ')}`,
          `tenants: ${report.migrated.length} migrated, ${report.unchanged.length} up to date, ${failed.length} failed`,
          ...failed.map(({ schema, reason }) => `  ${schema}: ${reason}`),
        ].join('\n'),
      );
      if (failed.length > 0) throw problem('CONFLICT', `${failed.length} tenants could not be migrated`);
    });
}
