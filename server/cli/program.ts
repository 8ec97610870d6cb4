// The program `leasehold`: its commands and their common parts (`--json`, error texts, exit codes). Also has the two
// commands without subcommands, `migrate` and `config`.
import { Command, CommanderError } from 'commander';
import { ConnectionError, JobFailedError, ProblemError } from '../client/client-errors.ts';
import { explainDatabaseError, sqlState } from '../database/sql-errors.ts';
import { EmbeddedPostgresError } from '../embedded-postgres/embedded-postgres-error.ts';
import { ConfigError, describeSettings } from '../kernel/config.ts';
import { packageVersion } from '../kernel/environment.ts';
import { errorMessage, Problem, problem } from '../kernel/errors.ts';
import { migrateEverything } from '../tenants/migrate-all.ts';
import { readAllTenants } from '../tenants/tenant-store.ts';
import { addBudgetCommands } from './commands/budgets.ts';
import { addDoctorCommand } from './commands/doctor.ts';
import { addEventCommands, addWorkerCommands } from './commands/follow.ts';
import { addJobActions } from './commands/job-actions.ts';
import { addJobReads } from './commands/job-reads.ts';
import { addKeyCommands } from './commands/keys.ts';
import { addLimitCommands } from './commands/limits.ts';
import { addQuestionCommands } from './commands/questions.ts';
import { addScheduleCommands } from './commands/schedules.ts';
import { addCompletionCommand } from './commands/setup/completion.ts';
import { addDevCommand } from './commands/setup/dev.ts';
import { addInitCommand } from './commands/setup/init.ts';
import { addCanaryCommands, addTargetCommands } from './commands/targets.ts';
import { addTenantCommands } from './commands/tenants.ts';
import { addTopCommand } from './commands/top.ts';
import { addVerifyCommand } from './commands/verify.ts';
import { ProgressBar, printable } from './output.ts';
import { Session, type Terminal, table } from './session.ts';

/** 0 success, 1 refused or failed, 2 wrong usage, 3 the database or the daemon is unreachable. */
export type ExitCode = 0 | 1 | 2 | 3;

export async function runCli(args: readonly string[], terminal: Terminal): Promise<ExitCode> {
  const program = new Command('leasehold')
    .description('Leasehold at the terminal: jobs, targets, schedules, events; migrations, tenants, keys, settings.')
    .version(packageVersion())
    .option('--json', 'print JSON instead of text')
    .exitOverride()
    .configureOutput({ writeOut: terminal.out, writeErr: terminal.err })
    .showHelpAfterError('(add --help for the usage)');
  const session = new Session(terminal, () => program.opts<{ json?: boolean }>().json ?? false);
  addInitCommand(program, session);
  addDevCommand(program, session);
  const jobs = program.command('jobs').description('list, show, watch, enqueue and act on jobs');
  addJobReads(jobs, session);
  addJobActions(jobs, session);
  addTargetCommands(program, session);
  addQuestionCommands(program, session);
  addScheduleCommands(program, session);
  addLimitCommands(program, session);
  addBudgetCommands(program, session);
  addEventCommands(program, session);
  addWorkerCommands(program, session);
  addTopCommand(program, session);
  addDoctorCommand(program, session);
  addMigrateCommand(program, session);
  addTenantCommands(program, session);
  addKeyCommands(program, session);
  addCanaryCommands(program, session);
  addConfigCommand(program, session);
  addVerifyCommand(program, session);
  addCompletionCommand(program, session);
  inherit(program);
  try {
    await program.parseAsync([...args], { from: 'user' });
    if (!session.failed) session.showWarnings();
    return session.failed ? 1 : 0;
  } catch (error) {
    return explain(error, terminal, session.json);
  } finally {
    await session.close();
  }
}

/** Subcommands do not inherit settings, and `--json` may be given before or after them. */
function inherit(program: Command): void {
  const addTo = (command: Command) => {
    for (const child of command.commands) {
      child.copyInheritedSettings(command);
      child
        .option('--json', 'print JSON instead of text')
        .on('option:json', () => program.setOptionValue('json', true));
      addTo(child);
    }
  };
  addTo(program);
}

function explain(error: unknown, terminal: Terminal, json: boolean): ExitCode {
  // commander has already printed its message.
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
  const [exitCode, code, detail] = diagnose(error);
  terminal.err(json ? `${JSON.stringify({ code, detail })}\n` : `error: ${printable(detail)}\n`);
  return exitCode;
}

function diagnose(error: unknown): [ExitCode, string, string] {
  if (error instanceof Problem) return [error.code === 'INVALID_FIELD' ? 2 : 1, error.code, error.message];
  if (error instanceof ProblemError) return [error.status === 400 ? 2 : 1, error.code, error.detail];
  if (error instanceof ConnectionError) return [3, 'UNREACHABLE', error.message];
  if (error instanceof JobFailedError) return [1, 'JOB_FAILED', error.message];
  if (error instanceof ConfigError) return [2, 'CONFIG', error.message];
  if (error instanceof EmbeddedPostgresError) return [3, 'DATABASE_UNAVAILABLE', error.message];
  const state = sqlState(error);
  const detail = explainDatabaseError(error);
  if (detail !== undefined) return state === '42501' ? [1, 'FORBIDDEN', detail] : [3, 'DATABASE_UNAVAILABLE', detail];
  // 42P01: no such table, 3F000: no such schema.
  if (state === '42P01' || state === '3F000') {
    return [1, 'NOT_MIGRATED', 'the database has not been migrated; run `leasehold migrate` first'];
  }
  return [1, 'INTERNAL', errorMessage(error)];
}

/** Prints every setting with its value, default and meaning. Secrets are hidden. */
function addConfigCommand(program: Command, session: Session): void {
  program
    .command('config')
    .description('print every setting: its value, its default, what is allowed and what it does')
    .action(() => {
      const values = session.config as unknown as Record<string, unknown>;
      const settings = describeSettings().map((setting) => ({
        ...setting,
        value: shown(setting.name, String(values[camel(setting.name)])),
        set: (session.terminal.env[setting.name] ?? '').trim() !== '',
      }));
      session.print(
        settings,
        table(
          ['SETTING', 'VALUE', 'DEFAULT', 'MEANING'],
          settings.map((s) => [s.name, s.value || '(empty)', s.set ? s.default || '(empty)' : '', s.doc]),
        ),
      );
    });
}

function shown(name: string, value: string): string {
  if (value !== '' && /KEY|SECRET/.test(name)) return '(hidden)';
  // Not parsed: URL() refuses a URL with several hosts.
  return /URL$/.test(name)
    ? value.replace(/^([^/]*\/\/[^:/?@]*:)[^/?]*@/, '$1***@').replace(/([?&]password=)[^&]*/, '$1***')
    : value;
}

function camel(name: string): string {
  return name.toLowerCase().replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

/** Migrates the control schema and all tenants, as a daemon does when it starts. */
function addMigrateCommand(program: Command, session: Session): void {
  program
    .command('migrate')
    .description('migrate the control schema and every tenant to the version of this program')
    .action(async () => {
      session.allowNewDatabase();
      const db = await session.database();
      const bar = new ProgressBar(session, 'tenants');
      const report = await migrateEverything(db, {
        concurrency: session.config.migrateConcurrency,
        logger: session.logger,
        onProgress: (done, total) => bar.show(done, total),
      });
      bar.end();
      for (const { schema, status } of await readAllTenants(db)) {
        if (status !== 'DELETING') await db.tenantRoles?.prepare(schema);
      }
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
