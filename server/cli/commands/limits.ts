// leasehold limits: list, show, set and delete rate and concurrency limits.
import type { Command } from 'commander';
import type { Limit } from '../../client/generated/api-types.ts';
import { problem } from '../../kernel/errors.ts';
import { type ConnectionOptions, connect, withConnection } from '../connection.ts';
import { facts, fitTable } from '../output.ts';
import type { Session } from '../session.ts';

interface SetOptions extends ConnectionOptions {
  rate?: string;
  burst?: string;
  concurrency?: string;
  type?: string;
  queue?: string;
  by?: string;
}

export function addLimitCommands(program: Command, session: Session): void {
  const limits = program.command('limits').description('list, show, set and delete rate and concurrency limits');
  withConnection(limits.command('list'))
    .description('list limits with what waits and runs')
    .action(async (options: ConnectionOptions) => {
      const found = await (await connect(session, options)).limits.list();
      const rows = found.map((limit) => [
        limit.name,
        amountOf(limit),
        countedOf(limit),
        String(limit.waiting),
        String(limit.running),
      ]);
      const headings = ['NAME', 'LIMIT', 'COUNTS', 'WAITING', 'RUNNING'];
      session.print(found, found.length === 0 ? 'no limits' : fitTable(session.terminal.screen, headings, rows));
    });
  withConnection(limits.command('show <limit>'))
    .description('show a limit and its busiest keys')
    .action(async (name: string, options: ConnectionOptions) => {
      const limit = await (await connect(session, options)).limits.get(name);
      session.print(limit, limitText(session, limit));
    });
  withConnection(limits.command('set <limit>'))
    .description('add a limit, or replace the one of this name')
    .option('--rate <rate>', 'starts per time: 100/minute, 5/second')
    .option('--burst <count>', 'starts that may come at once')
    .option('--concurrency <count>', 'jobs that may run at once')
    .option('--type <type>', 'count only jobs of this type')
    .option('--queue <queue>', 'count only jobs of this queue')
    .option('--by <key>', 'count each value separately: payload.account, target_id, author')
    .action(async (name: string, { rate, burst, concurrency, type, queue, by, ...options }: SetOptions) => {
      const limit = await (await connect(session, options)).limits.set(name, {
        ...(rate !== undefined && rateOf(rate)),
        ...(burst !== undefined && { burst: Number(burst) }),
        ...(concurrency !== undefined && { concurrency: Number(concurrency) }),
        ...(type !== undefined && { type }),
        ...(queue !== undefined && { queue }),
        ...(by !== undefined && { key: by }),
      });
      session.print(limit, `${limit.name}: ${amountOf(limit)}`);
    });
  withConnection(limits.command('delete <limit>'))
    .description('delete a limit; its waiting jobs may start')
    .action(async (name: string, options: ConnectionOptions) => {
      await (await connect(session, options)).limits.delete(name);
      session.print({ name }, `deleted ${name}`);
    });
}

const units = ['second', 'minute', 'hour', 'day'] as const;

function rateOf(text: string): { rate: number; per: (typeof units)[number] } {
  const [count = '', unit = 'second'] = text.split('/');
  const per = units.find((known) => known === unit);
  if (per === undefined || !(Number(count) > 0)) {
    throw problem('INVALID_FIELD', `--rate is a number per second, minute, hour or day, e.g. 100/minute, not ${text}.`);
  }
  return { rate: Number(count), per };
}

function amountOf({ rate, per, concurrency }: Limit): string {
  const parts = [
    ...(rate === null ? [] : [`${rate} per ${per}`]),
    ...(concurrency === null ? [] : [`${concurrency} at once`]),
  ];
  return parts.join(', ');
}

function countedOf({ type, queue, key }: Limit): string {
  const which = [
    ...(type === null ? [] : [`type ${type}`]),
    ...(queue === null ? [] : [`queue ${queue}`]),
    ...(key === null ? [] : [`by ${key}`]),
  ];
  return which.length === 0 ? 'all jobs' : which.join(', ');
}

function limitText(session: Session, limit: Limit): string {
  const known = facts({
    name: limit.name,
    limit: amountOf(limit),
    counts: countedOf(limit),
    burst: limit.burst === null ? '' : String(limit.burst),
    source: limit.source,
    waiting: String(limit.waiting),
    running: String(limit.running),
  });
  const rows = limit.keys.map((key) => [
    key.value,
    String(key.waiting),
    String(key.running),
    key.tokens === null ? '' : String(key.tokens),
    key.next_at ?? '',
  ]);
  if (rows.length === 0) return known;
  return `${known}\n\n${fitTable(session.terminal.screen, ['KEY', 'WAITING', 'RUNNING', 'TOKENS', 'NEXT'], rows)}`;
}
