// leasehold targets: list, show, pause and resume targets.
import type { Command } from 'commander';
import type { LaneJob, Target, TargetLane } from '../../client/generated/api-types.ts';
import type { Database } from '../../database/database.ts';
import { createOperation } from '../../jobs/actions/bulk-operations.ts';
import { startCanary } from '../../jobs/actions/start-canary.ts';
import { describeWaiting } from '../../jobs/model/waiting.ts';
import { getTenant } from '../../tenants/tenant-store.ts';
import { type ConnectionOptions, connect, withConnection } from '../connection.ts';
import { age, colourOf, facts, fitTable, oneLine } from '../output.ts';
import type { Session } from '../session.ts';
import { countOf } from './job-reads.ts';

interface PauseOptions extends ConnectionOptions {
  reason?: string;
  author?: string;
  until?: string;
}

export function addTargetCommands(program: Command, session: Session): void {
  const targets = program.command('targets').description('list, show, pause and resume targets');
  withConnection(targets.command('list'))
    .description('list targets with the head of each lane')
    .option('--paused', 'only paused ones')
    .option('--limit <count>', 'how many', '50')
    .action(async (options: ConnectionOptions & { paused?: boolean; limit: string }) => {
      const client = await connect(session, options);
      const limit = countOf(options.limit, '--limit');
      const found = await client.targets.list({ paused: options.paused, limit: Math.min(200, limit) }).take(limit);
      session.print(found, found.length === 0 ? 'no targets' : targetTable(session, found));
    });
  withConnection(targets.command('show <target>'))
    .description('show a target and its lane')
    .action(async (id: string, options: ConnectionOptions) => {
      const lane = await (await connect(session, options)).targets.get(id);
      session.print(lane, laneText(session, lane));
    });
  withConnection(targets.command('pause <target>'))
    .description('start nothing more on a target; what runs continues')
    .option('--reason <text>', 'why, for those who read the history')
    .option('--author <name>', 'who, for those who read the history')
    .option('--until <time>', 'when the pause ends by itself')
    .action(async (id: string, { reason, author, until, ...options }: PauseOptions) => {
      const lane = await (await connect(session, options)).targets.pause(id, { reason, author, until });
      session.print(lane, `${oneLine(lane.id)} is paused`);
    });
  withConnection(targets.command('resume <target>'))
    .description('resume a paused target')
    .option('--reason <text>', 'why, for those who read the history')
    .option('--author <name>', 'who, for those who read the history')
    .action(async (id: string, { reason, author, ...options }: PauseOptions) => {
      const lane = await (await connect(session, options)).targets.resume(id, { reason, author });
      session.print(lane, `${oneLine(lane.id)} is resumed`);
    });
}

function targetTable(session: Session, found: readonly Target[]): string {
  const rows = found.map(({ id, paused, head, hold }) => [
    id,
    paused ? 'paused' : hold === null ? '' : 'held',
    head?.status ?? '',
    head?.type ?? '',
    age(head?.created_at),
    hold?.detail ?? waitText(head) ?? '',
  ]);
  const headings = ['TARGET', 'STATE', 'HEAD', 'TYPE', 'AGE', 'WHY'];
  return fitTable(session.terminal.screen, headings, rows, (row, column) => {
    if (column === 1 && rows[row]?.[1] !== '') return 'yellow';
    return column === 2 ? colourOf(found[row]?.head?.status ?? '') : undefined;
  });
}

/** Returns the wait of the head of a lane, if it waits. */
export function waitText(head: LaneJob | null): string | undefined {
  return head?.status === 'WAITING' && head.waiting !== null ? describeWaiting(head.waiting) : undefined;
}

function laneText(session: Session, lane: TargetLane): string {
  const labels = Object.entries(lane.labels).map(([name, value]) => `${name}=${value}`);
  const waits = waitText(lane.head);
  const known: Record<string, string> = {
    target: oneLine(lane.id),
    paused: lane.paused ? `by ${lane.paused_by}${lane.pause_reason === null ? '' : `: ${lane.pause_reason}`}` : 'no',
    ...(lane.hold !== null && { hold: oneLine(lane.hold.detail) }),
    ...(waits !== undefined && { waits: oneLine(waits) }),
    ...(labels.length > 0 && { labels: labels.join(' ') }),
    waiting: lane.waiting_exact ? String(lane.waiting) : `at least ${lane.waiting}`,
  };
  const jobs = [...(lane.head === null ? [] : [lane.head]), ...lane.next];
  const rows = jobs.map((job) => [job.id, job.status, job.type, job.priority, age(job.created_at)]);
  if (rows.length === 0) return facts(known);
  const headings = ['ID', 'STATUS', 'TYPE', 'PRIORITY', 'AGE'];
  const table = fitTable(session.terminal.screen, headings, rows, (row, column) =>
    column === 1 ? colourOf(jobs[row]?.status ?? '') : undefined,
  );
  return `${facts(known)}\n\n${table}`;
}

// leasehold canary …: let one job of a held target, or of a filter, run before the others.

interface AuditOptions {
  reason?: string;
  author?: string;
}

interface FilterOptions extends AuditOptions {
  type?: string;
  queue?: string;
  target?: string;
  search?: string;
}

/** The actor in the log, because actions of this command have no key. */
const actor = 'cli';

export function addCanaryCommands(program: Command, session: Session): void {
  const canary = program.command('canary').description('let one held job run, and the others only if it succeeds');
  addTarget(canary, session);
  addJobs(canary, session);
}

function addTarget(canary: Command, session: Session): void {
  withAudit(canary.command('target <tenant> <target>'))
    .description('the job that holds a target, or the next of a paused one; the lane resumes if it succeeds')
    .action(async (slug: string, targetId: string, options: AuditOptions) => {
      const db = await session.database();
      const { schema } = await getTenant(db, slug);
      const target = await startCanary(db, schema, { targetId, actor, ...options });
      session.print(
        { target_id: target.id, canary_job_id: target.canaryJobId },
        facts({ target: target.id, canary: target.canaryJobId ?? '' }),
      );
    });
}

function addJobs(canary: Command, session: Session): void {
  withAudit(canary.command('jobs <tenant>'))
    .description('the oldest held job that matches; the others are resumed if it succeeds')
    .option('--type <type>', 'only jobs of this type')
    .option('--queue <queue>', 'only jobs of this queue')
    .option('--target <target>', 'only jobs of this target')
    .option('--search <text>', 'part of the type or the target, or the beginning of the id')
    .action(async (slug: string, options: FilterOptions) => {
      const operation = await resumeWithCanary(await session.database(), slug, options);
      session.print(
        { operation_id: operation.id, matched: operation.matched },
        facts({ operation: operation.id, matched: String(operation.matched) }),
      );
    });
}

async function resumeWithCanary(db: Database, slug: string, options: FilterOptions) {
  const { schema } = await getTenant(db, slug);
  const { type, queue, target: targetId, search, author, reason } = options;
  return createOperation(db, schema, {
    action: 'resume',
    filter: { type, queue, targetId, search },
    author,
    reason,
    canary: true,
  });
}

function withAudit(command: Command): Command {
  return command
    .option('--reason <text>', 'recorded in the history')
    .option('--author <name>', 'the person or program that acts, recorded in the history');
}
