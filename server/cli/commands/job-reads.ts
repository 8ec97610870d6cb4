// leasehold jobs list, show, why, logs, watch: reads jobs, over HTTP or from the database.
import { readFileSync } from 'node:fs';
import type { Command } from 'commander';
import type { LeaseholdClient } from '../../client/client.ts';
import { JobFailedError } from '../../client/client-errors.ts';
import type { StreamMessage } from '../../client/events.ts';
import type { Job, JobSummary, Status } from '../../client/generated/api-types.ts';
import { describeWaiting } from '../../jobs/model/waiting.ts';
import { problem } from '../../kernel/errors.ts';
import { type ConnectionOptions, connect, withConnection } from '../connection.ts';
import { age, colourOf, facts, fitTable, oneLine, paint } from '../output.ts';
import type { Session } from '../session.ts';

interface ListOptions extends ConnectionOptions {
  status?: string[];
  held?: boolean;
  type?: string;
  queue?: string;
  target?: string;
  search?: string;
  limit: string;
}

export function addJobReads(jobs: Command, session: Session): void {
  addList(jobs, session);
  addShow(jobs, session);
  addWhy(jobs, session);
  addLogs(jobs, session);
  addWatch(jobs, session);
}

function addList(jobs: Command, session: Session): void {
  withConnection(jobs.command('list'))
    .description('list jobs, newest first')
    .option('--status <status...>', 'e.g. QUEUED RUNNING')
    .option('--held', 'only jobs that wait for a person')
    .option('--type <type>', 'only jobs of this type')
    .option('--queue <queue>', 'only jobs of this queue')
    .option('--target <target>', 'only jobs of this target')
    .option('--search <text>', 'part of the type or the target, or the beginning of the id')
    .option('--limit <count>', 'how many', '30')
    .action(async (options: ListOptions) => {
      const client = await connect(session, options);
      const { status, held, type, queue, target: targetId, search } = options;
      const filter = { status: status as Status[] | undefined, held, type, queue, targetId, search };
      const limit = countOf(options.limit, '--limit');
      const found = await client.jobs.list({ ...filter, limit: Math.min(200, limit) }).take(limit);
      session.print(found, found.length === 0 ? 'no jobs' : jobTable(session, found));
    });
}

function jobTable(session: Session, found: readonly JobSummary[]): string {
  const rows = found.map((job) => [
    job.id,
    job.status,
    job.type,
    job.target_id ?? '',
    job.priority === 'NORMAL' ? '' : job.priority,
    job.status === 'RUNNING' && job.progress !== null ? `${Math.round(job.progress)} %` : '',
    age(job.created_at),
    messageOf(job),
  ]);
  const headings = ['ID', 'STATUS', 'TYPE', 'TARGET', 'PRIORITY', 'DONE', 'AGE', 'MESSAGE'];
  return fitTable(session.terminal.screen, headings, rows, (row, column) =>
    column === 1 ? colourOf(found[row]?.status ?? '') : undefined,
  );
}

function messageOf({ status, waiting, error, progress_message: message }: JobSummary): string {
  if (status === 'WAITING' && waiting !== null) return describeWaiting(waiting);
  return error?.message ?? message ?? '';
}

function addShow(jobs: Command, session: Session): void {
  withConnection(jobs.command('show <job>'))
    .description('show a job; the beginning of its id is enough if it is the only one')
    .action(async (id: string, options: ConnectionOptions) => {
      const client = await connect(session, options);
      const job = await client.jobs.get(await jobIdOf(client, id));
      session.print(job, jobText(session, job));
    });
}

function phasesHeading({ phases, phases_total: total }: Job): string {
  return total === undefined ? 'phases' : `phases (the last ${phases.length} of ${total})`;
}

function jobText(session: Session, job: Job): string {
  const { screen } = session.terminal;
  const shown: Record<string, unknown> = {
    id: job.id,
    type: job.type,
    status: job.status,
    target: job.target_id,
    queue: job.queue,
    priority: job.priority,
    attempts: `${job.attempts} (${job.attempts_since_resume} of ${job.max_attempts})`,
    progress: job.progress === null ? null : `${job.progress} % ${job.progress_message ?? ''}`,
    used: usageText(job.usage),
    created: job.created_at,
    started: job.started_at,
    finished: job.finished_at,
    'runs on': job.lease_expires_at === null ? null : job.lease_owner,
    hold: job.hold && `${job.hold.kind}: ${job.hold.reason ?? ''} (${job.hold.author ?? ''} since ${job.hold.since})`,
    waits: job.status === 'WAITING' && job.waiting !== null ? describeWaiting(job.waiting) : null,
    error: job.error && `${job.error.code}: ${job.error.message}`,
    payload: JSON.stringify(job.payload),
    result: job.result === null ? null : JSON.stringify(job.result),
  };
  const present = Object.entries(shown).filter(([, value]) => value !== null && value !== undefined);
  const phases = job.phases.map(({ name, status, message }) =>
    oneLine(`  ${name}: ${status} ${message ?? ''}`).trimEnd(),
  );
  return [
    facts(Object.fromEntries(present.map(([name, value]) => [name, String(value)])), (name, value) =>
      name === 'status' ? paint(screen, colourOf(value), value) : value,
    ),
    ...(phases.length > 0 ? [phasesHeading(job), ...phases] : []),
  ].join('\n');
}

/** `1200 tokens of 5000, 3 cents`; null if nothing was used. */
function usageText({ tokens, token_limit, units, budget }: Job['usage']): string | null {
  const limits: Record<string, number | null> = { ...budget, tokens: token_limit };
  const used = Object.entries({ ...(tokens > 0 && { tokens }), ...units });
  const text = used.map(([unit, amount]) => `${amount} ${unit}${limits[unit] ? ` of ${limits[unit]}` : ''}`);
  return text.length === 0 ? null : text.join(', ');
}

function addWhy(jobs: Command, session: Session): void {
  withConnection(jobs.command('why <job>'))
    .description('why a job is not running, and what would release it')
    .action(async (id: string, options: ConnectionOptions) => {
      const client = await connect(session, options);
      const why = await client.jobs.why(await jobIdOf(client, id));
      const place = why.position === null ? '' : `, place ${why.position} in its lane`;
      const lines = why.reasons.map(
        (reason) => `- ${oneLine(reason.detail)} (${reason.code})\n  ${oneLine(reason.release.detail)}`,
      );
      if (lines.length === 0) lines.push(why.running ? 'It is running.' : 'The next claim takes it.');
      session.print(why, [`${why.job_id} is ${why.status}${place}`, ...lines].join('\n'));
    });
}

function addLogs(jobs: Command, session: Session): void {
  withConnection(jobs.command('logs <job>'))
    .description('what the handler of a job logged')
    .option('--follow', 'continue until the job has ended')
    .action(async (given: string, options: ConnectionOptions & { follow?: boolean }) => {
      const client = await connect(session, options);
      const id = await jobIdOf(client, given);
      const signal = options.follow ? session.terminal.interrupted?.() : undefined;
      const pages = client.jobs.logPages(id);
      let cursor: string | undefined;
      for (;;) {
        // Read before the log, so that the next page has every line that was logged before the job ended.
        const ended = !options.follow || isEnded((await client.jobs.get(id)).status);
        const page = await pages.page(cursor);
        for (const line of page.items) {
          const text = `${line.at} ${line.level.padEnd(5)} ${oneLine(line.message)} ${line.data ? oneLine(JSON.stringify(line.data)) : ''}`;
          session.terminal.out(session.json ? `${JSON.stringify(line)}\n` : `${text.trimEnd()}\n`);
        }
        cursor = page.nextCursor ?? cursor;
        if ((ended && page.items.length === 0) || signal?.aborted) return;
        if (page.items.length === 0) await new Promise((resolve) => setTimeout(resolve, 500));
      }
    });
}

function addWatch(jobs: Command, session: Session): void {
  withConnection(jobs.command('watch <job>'))
    .description('follow a job until it has ended; exits with 1 if it failed or was canceled')
    .action(async (given: string, options: ConnectionOptions) => {
      const client = await connect(session, options);
      await watchJob(session, client, await jobIdOf(client, given));
    });
}

export async function watchJob(session: Session, client: LeaseholdClient, id: string): Promise<void> {
  const signal = session.terminal.interrupted?.();
  try {
    for await (const message of client.events.stream({ job: id, snapshot: true, signal })) {
      const status = statusAfter(session, message);
      if (status !== undefined && isEnded(status)) break;
    }
  } catch (error) {
    if (signal?.aborted) return;
    throw error;
  }
  const job = await client.jobs.get(id);
  if (!session.json) session.terminal.out(`${jobText(session, job)}\n`);
  if (job.status === 'ERROR' || job.status === 'CANCELED') throw new JobFailedError(job);
}

/** Prints the event. Returns the new status of the job, if the message has one. */
function statusAfter(session: Session, message: StreamMessage): string | undefined {
  if (message.kind === 'snapshot') return message.jobs[0]?.status ?? 'CANCELED';
  if (message.kind !== 'event') return undefined;
  session.terminal.out(`${session.json ? JSON.stringify(message.event) : eventText(session, message.event)}\n`);
  return message.event.to ?? undefined;
}

export function eventText(
  session: Session,
  event: {
    at: string;
    type: string;
    target_id: string | null;
    job_id: string | null;
    to: string | null;
    actor: string;
    data: Record<string, unknown> | null;
  },
): string {
  const { screen } = session.terminal;
  const data = event.data === null ? '' : JSON.stringify(event.data);
  const about = [event.target_id, event.job_id].filter(Boolean).join(' ');
  const text = [
    event.at,
    paint(screen, colourOf(event.to ?? ''), event.type),
    oneLine(about),
    oneLine(event.actor),
    oneLine(data),
  ]
    .filter(Boolean)
    .join(' ');
  return text;
}

function isEnded(status: string): boolean {
  return ['SUCCESS', 'PARTIAL', 'CANCELED', 'ERROR'].includes(status);
}

const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** Returns the id itself, or the only job whose id begins with this text. */
export async function jobIdOf(client: LeaseholdClient, text: string): Promise<string> {
  if (uuid.test(text)) return text.toLowerCase();
  const matching = (await client.jobs.list({ search: text, limit: 10 }).take(10)).filter((job) =>
    job.id.startsWith(text),
  );
  const [only] = matching;
  if (only === undefined) throw problem('NOT_FOUND', `There is no job whose id begins with ${text}.`);
  if (matching.length > 1)
    throw problem('CONFLICT', `Several jobs have an id that begins with ${text}; give more of it.`);
  return only.id;
}

export function countOf(text: string, field: string): number {
  const count = Number(text);
  if (Number.isInteger(count) && count > 0) return count;
  throw problem('INVALID_FIELD', `${field} must be a number above 0, not ${text}`);
}

/** JSON, or with `@` the JSON in a file. */
export function readJson(text: string, field: string): unknown {
  try {
    return JSON.parse(text.startsWith('@') ? readFileSync(text.slice(1), 'utf8') : text);
  } catch (error) {
    throw problem(
      'INVALID_FIELD',
      `${field} must be JSON, or @ and the name of a file with JSON: ${(error as Error).message}`,
    );
  }
}
