// leasehold jobs enqueue, pause, resume, resolve, skip, cancel, retry, bulk: actions on jobs.
import type { Command } from 'commander';
import type { LeaseholdClient } from '../../client/client.ts';
import type { BulkFilter, EnqueueOptions } from '../../client/generated/api-options.ts';
import type { Priority, Status } from '../../client/generated/api-types.ts';
import type { BulkAction } from '../../client/operations.ts';
import { problem } from '../../kernel/errors.ts';
import { type ConnectionOptions, connect, withConnection } from '../connection.ts';
import { facts, ProgressBar } from '../output.ts';
import type { Session } from '../session.ts';
import { unitsOf } from './budgets.ts';
import { countOf, jobIdOf, readJson, watchJob } from './job-reads.ts';

interface AuditOptions {
  reason?: string;
  author?: string;
}

type Unique = NonNullable<EnqueueOptions['unique']>;

interface EnqueueFlags extends ConnectionOptions {
  unique?: string;
  uniqueUntil: string;
  onConflict: string;
  target?: string;
  priority?: string;
  queue?: string;
  runAt?: string;
  maxAttempts?: string;
  budget?: string[];
  after?: string[];
  afterFailure?: string;
  idempotencyKey?: string;
  author?: string;
  watch?: boolean;
}

const actions = {
  pause: 'pause a job; it holds its lane',
  retry: 'run a failed job again; the same as resume',
  skip: 'cancel the job that holds its lane, so that the lane continues',
  cancel: 'end a job; a running one is asked to stop',
} as const;

export function addJobActions(jobs: Command, session: Session): void {
  addEnqueue(jobs, session);
  for (const [verb, description] of Object.entries(actions)) {
    withAudit(withConnection(jobs.command(`${verb} <job>`)))
      .description(description)
      .action((id: string, options: ConnectionOptions & AuditOptions) =>
        act(session, id, options, (client, job) => client.jobs[verb as keyof typeof actions](job, auditOf(options))),
      );
  }
  withAudit(withConnection(jobs.command('resolve <job>')))
    .description('end a paused or failed job as SUCCESS')
    .option('--result <json>', 'the result of the job; @file reads a file')
    .action((id: string, options: ConnectionOptions & AuditOptions & { result?: string }) =>
      act(session, id, options, (client, job) => {
        const result = options.result === undefined ? null : readJson(options.result, '--result');
        return client.jobs.resolve(job, { ...auditOf(options), result });
      }),
    );
  addResume(jobs, session);
  addBulk(jobs, session);
}

interface ResumeFlags extends ConnectionOptions, AuditOptions {
  tokenLimit?: string;
  budget?: string[];
}

function addResume(jobs: Command, session: Session): void {
  withAudit(withConnection(jobs.command('resume <job>')))
    .description('run a paused or failed job again, first in its lane')
    .option('--budget <unit=amount...>', 'what it may use from now on, e.g. cents=1000')
    .option('--token-limit <count>', 'the same for tokens')
    .action((id: string, options: ResumeFlags) =>
      act(session, id, options, (client, job) => {
        const tokenLimit = options.tokenLimit === undefined ? undefined : countOf(options.tokenLimit, '--token-limit');
        return client.jobs.resume(job, { ...auditOf(options), tokenLimit, budget: unitsOf(options.budget) });
      }),
    );
}

function addEnqueue(jobs: Command, session: Session): void {
  withConnection(jobs.command('enqueue <type> [payload]'))
    .description('enqueue a job; the payload is JSON, or @file')
    .option('--target <target>', 'the lane to stand in')
    .option('--priority <priority>', 'URGENT, HIGH, NORMAL or LOW')
    .option('--queue <queue>', 'the queue')
    .option('--run-at <time>', 'not before this time, e.g. 2030-01-01T08:00:00Z')
    .option('--after <job...>', 'run when these jobs have succeeded: ids, or the keys they were enqueued with')
    .option('--after-failure <policy>', 'if one of them fails: hold (default), cancel or continue')
    .option('--max-attempts <count>', 'including the first')
    .option('--budget <unit=amount...>', 'what it may use over all attempts, e.g. cents=500')
    .option('--idempotency-key <key>', 'the same key makes one job')
    .option('--unique <key>', 'at most one job of the type holds the key at a time')
    .option('--unique-until <end>', 'started, finished, or a number of seconds', 'finished')
    .option('--on-conflict <action>', 'if the key is held: skip, replace or debounce', 'skip')
    .option('--author <name>', 'shown in the history')
    .option('--watch', 'follow it until it has ended')
    .action(async (type: string, payload: string | undefined, options: EnqueueFlags) => {
      const client = await connect(session, options);
      const { target: targetId, queue, runAt, idempotencyKey, author } = options;
      const given = payload === undefined ? undefined : readJson(payload, 'payload');
      const { id, created, job } = await client.enqueue(type, given, {
        targetId,
        priority: options.priority?.toUpperCase() as Priority | undefined,
        queue,
        runAt,
        maxAttempts: options.maxAttempts === undefined ? undefined : countOf(options.maxAttempts, '--max-attempts'),
        budget: unitsOf(options.budget),
        idempotencyKey,
        author,
        after: options.after?.map((job) => ({
          job,
          onFailure: options.afterFailure as 'hold' | 'cancel' | 'continue' | undefined,
        })),
        unique: uniqueOf(options),
      });
      if (!options.watch)
        return session.print({ created, job }, facts({ job: id, status: job.status, created: String(created) }));
      await watchJob(session, client, id);
    });
}

async function act(
  session: Session,
  id: string,
  options: ConnectionOptions,
  action: (client: LeaseholdClient, job: string) => Promise<{ id: string; status: string; cancel_requested: boolean }>,
): Promise<void> {
  const client = await connect(session, options);
  const job = await action(client, await jobIdOf(client, id));
  const waits = job.cancel_requested && job.status === 'RUNNING' ? ', asked to stop' : '';
  session.print(job, `${job.id} is ${job.status}${waits}`);
}

interface BulkFlags extends ConnectionOptions, AuditOptions {
  status?: string[];
  type?: string;
  queue?: string;
  target?: string;
  all?: boolean;
  dryRun?: boolean;
}

function addBulk(jobs: Command, session: Session): void {
  withAudit(withConnection(jobs.command('bulk <action>')))
    .description('cancel, resume or retry all jobs that match')
    .option('--status <status...>', 'e.g. ERROR PAUSED')
    .option('--type <type>', 'only jobs of this type')
    .option('--queue <queue>', 'only jobs of this queue')
    .option('--target <target>', 'only jobs of this target')
    .option('--all', 'needed if nothing else selects')
    .option('--dry-run', 'count the jobs, change nothing')
    .action(async (action: string, options: BulkFlags) => {
      const filter = filterOf(options);
      if (!['cancel', 'resume', 'retry'].includes(action)) {
        throw problem('INVALID_FIELD', `the action is cancel, resume or retry, not ${action}`);
      }
      const client = await connect(session, options);
      if (options.dryRun) {
        const preview = await client.operations.preview(action as BulkAction, filter);
        return session.print(preview, `${preview.matched} jobs match`);
      }
      const { id } = await client.operations.start(action as BulkAction, filter, auditOf(options));
      await followOperation(session, client, id);
    });
}

async function followOperation(session: Session, client: LeaseholdClient, id: string): Promise<void> {
  const bar = new ProgressBar(session, 'jobs');
  let last: Awaited<ReturnType<typeof client.operations.get>> | undefined;
  for await (const operation of client.operations.watch(id)) {
    bar.show(operation.done + operation.failed, operation.matched);
    last = operation;
  }
  bar.end();
  session.print(last, `${last?.done} of ${last?.matched} jobs done, ${last?.failed} had changed meanwhile`);
}

function filterOf({ status, type, queue, target: targetId, all }: BulkFlags): BulkFilter {
  const filter = { status: status as Status[] | undefined, type, queue, targetId };
  if (!all && Object.values(filter).every((value) => value === undefined)) {
    throw problem(
      'INVALID_FIELD',
      'say which jobs, with --type, --status, --queue or --target; or all of them with --all',
    );
  }
  return filter;
}

function withAudit(command: Command): Command {
  return command
    .option('--reason <text>', 'why, for those who read the history')
    .option('--author <name>', 'who, for those who read the history');
}

function uniqueOf({ unique: key, uniqueUntil, onConflict }: EnqueueFlags): Unique | undefined {
  if (key === undefined) return undefined;
  const until = /^\d+$/.test(uniqueUntil) ? Number(uniqueUntil) : uniqueUntil;
  return { key, until, conflict: onConflict } as Unique;
}

function auditOf({ reason, author }: AuditOptions): AuditOptions {
  return { ...(reason !== undefined && { reason }), ...(author !== undefined && { author }) };
}
