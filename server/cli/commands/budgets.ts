// leasehold budgets: lists, sets, raises and deletes budgets, and shows the usage.
import type { Command } from 'commander';
import type { NewBudget } from '../../client/generated/api-options.ts';
import type { Budget } from '../../client/generated/api-types.ts';
import { problem } from '../../kernel/errors.ts';
import { type ConnectionOptions, connect, withConnection } from '../connection.ts';
import { bar, fitTable } from '../output.ts';
import type { Session } from '../session.ts';
import { countOf } from './job-reads.ts';

interface SetOptions extends ConnectionOptions {
  limit: string;
  unit: string;
  per: string;
  type?: string;
}

const periods: Record<Budget['per'], string> = { job: 'each job', day: 'a day', target_day: 'each target, a day' };

export function addBudgetCommands(program: Command, session: Session): void {
  const budgets = program.command('budgets').description('list, set, raise and delete budgets; show what was used');
  addReads(budgets, session);
  withConnection(budgets.command('set <budget>'))
    .description('add a budget, or replace the one of this name')
    .requiredOption('--limit <amount>', 'how much may be used')
    .requiredOption('--unit <unit>', 'what is counted: tokens, cents or any name that handlers report')
    .option('--per <period>', `${Object.keys(periods).join(', ')} (all jobs of a target on a day)`, 'job')
    .option('--type <type>', 'only jobs of this type')
    .action(async (name: string, { limit, unit, per, type, ...options }: SetOptions) => {
      const budget = { limit: amountOf(limit), unit, per: per as NewBudget['per'], type };
      print(session, await (await connect(session, options)).budgets.set(name, budget));
    });
  withConnection(budgets.command('raise <budget> <limit>'))
    .description('change the limit of a budget; then resume the jobs that it holds')
    .action(async (name: string, limit: string, options: ConnectionOptions) => {
      const client = await connect(session, options);
      const found = (await client.budgets.list()).find((budget) => budget.name === name);
      if (found === undefined) throw problem('NOT_FOUND', `There is no budget ${name}.`);
      const { unit, per, type } = found;
      print(session, await client.budgets.set(name, { limit: amountOf(limit), unit, per, type: type ?? undefined }));
    });
  withConnection(budgets.command('delete <budget>'))
    .description('delete a budget; jobs that it holds stay held')
    .action(async (name: string, options: ConnectionOptions) => {
      await (await connect(session, options)).budgets.delete(name);
      session.print({ name }, `deleted ${name}`);
    });
}

function addReads(budgets: Command, session: Session): void {
  withConnection(budgets.command('list'))
    .description('list budgets with what was used today')
    .action(async (options: ConnectionOptions) => {
      const found = await (await connect(session, options)).budgets.list();
      const rows = found.map((budget) => [
        budget.name,
        `${budget.limit} ${budget.unit}`,
        periods[budget.per],
        budget.type ?? '',
        budget.used === null ? '' : `${bar(budget.used / budget.limit, 10)} ${budget.used}`,
      ]);
      const headings = ['NAME', 'LIMIT', 'PER', 'TYPE', 'USED TODAY'];
      const isSpent = (row: number) => (found[row]?.used ?? 0) >= (found[row]?.limit ?? 0);
      const table = fitTable(session.terminal.screen, headings, rows, (row, column) =>
        column === 4 && isSpent(row) ? 'red' : undefined,
      );
      session.print(found, found.length === 0 ? 'no budgets' : table);
    });
  withConnection(budgets.command('usage'))
    .description('what jobs used, by day, unit and type')
    .option('--days <count>', 'how many days, today included', '30')
    .action(async (options: ConnectionOptions & { days: string }) => {
      const days = countOf(options.days, '--days');
      const found = await (await connect(session, options)).budgets.usage({ days });
      const rows = found.map(({ day, unit, type, used }) => [day, unit, type ?? '(all)', String(used)]);
      const table = fitTable(session.terminal.screen, ['DAY', 'UNIT', 'TYPE', 'USED'], rows);
      session.print(found, found.length === 0 ? 'nothing was used' : table);
    });
}

function print(session: Session, budget: Budget): void {
  const which = budget.type === null ? '' : ` of type ${budget.type}`;
  session.print(budget, `${budget.name}: ${budget.limit} ${budget.unit} for ${periods[budget.per]}${which}`);
}

/** Parses `cents=500 tokens=20000`, the format of job options. */
export function unitsOf(given: readonly string[] | undefined): Record<string, number> | undefined {
  if (given === undefined) return undefined;
  return Object.fromEntries(
    given.map((text) => {
      const [unit = '', amount = ''] = text.split('=');
      return [unit, amountOf(amount)];
    }),
  );
}

function amountOf(text: string): number {
  const amount = Number(text);
  if (text.trim() !== '' && Number.isFinite(amount) && amount >= 0) return amount;
  throw problem('INVALID_FIELD', `an amount is a number such as 500, not ${JSON.stringify(text)}`);
}
