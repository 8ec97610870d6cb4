// A real daemon with one tenant for a test, with short intervals, on an embedded Postgres or on a given one.
import { randomBytes } from 'node:crypto';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Daemon } from '../daemon/daemon.ts';
import type { Database } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { runQuery } from '../database/sql.ts';
import { startEmbeddedPostgres } from '../embedded-postgres/start.ts';
import { cancelJob, pauseJob } from '../jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../jobs/actions/resume.ts';
import { listPhases } from '../jobs/attempt/phases.ts';
import { toNewJob, uniqueRequest } from '../jobs/enqueue/job-request.ts';
import { queueDueJobs } from '../jobs/finish/due-jobs.ts';
import { linkJobs } from '../jobs/flows/after-request.ts';
import type { JobError, Phase, Priority } from '../jobs/model/job-values.ts';
import { heldStatuses, statusIn, terminalStatuses, timedStatuses } from '../jobs/model/states.ts';
import { never, unlessNever, type Waiting } from '../jobs/model/waiting.ts';
import { answerQuestion } from '../jobs/questions/answer.ts';
import { listQuestions } from '../jobs/questions/read-questions.ts';
import { findJob } from '../jobs/read/read-jobs.ts';
import { deliverEvents } from '../jobs/received/deliver-events.ts';
import { receiveEvent, type SentEvent } from '../jobs/received/receive-event.ts';
import { type Duration, parseDuration } from '../kernel/clock.ts';
import { loadConfig } from '../kernel/config.ts';
import { parseFields } from '../kernel/fields.ts';
import { createLogger } from '../kernel/logger.ts';
import { createTenant } from '../tenants/create-tenant.ts';
import type { JobDefinition } from '../worker/handlers/define-job.ts';
import { HandlerRegistry } from '../worker/handlers/handler-registry.ts';
import { ThreadPool } from '../worker/threads/thread-pool.ts';

export interface EngineOptions {
  jobs: readonly JobDefinition[];
  /** The Postgres to use; a new tenant is created there. Without it an embedded one is started. */
  databaseUrl?: string;
  /** Additional settings, by their environment names. */
  settings?: Record<string, string>;
}

/** The fields of a request of the HTTP API, without type and payload. */
export interface EngineRequest {
  target_id?: string;
  priority?: Priority;
  queue?: string;
  /** ISO time. */
  run_at?: string;
  max_attempts?: number;
  timeout_seconds?: number;
  expires_in_seconds?: number;
  token_limit?: number;
  on_error?: 'block' | 'continue';
  on_drain?: 'pause' | 'requeue';
  /** Makes the request idempotent. */
  client_request_id?: string;
  author?: string;
  /** Ids or client_request_ids of jobs that must succeed first. */
  after?: (string | { job: string; on_failure?: 'hold' | 'cancel' | 'continue' })[];
  /** At most one job of the type holds the key at a time; `enqueue` returns the one that holds it. */
  unique?: { key: string; until?: 'started' | 'finished' | number; conflict?: 'skip' | 'replace' | 'debounce' };
}

export interface EngineJob {
  id: string;
  type: string;
  status: string;
  targetId: string | null;
  priority: Priority;
  payload: unknown;
  result: unknown;
  error: JobError | null;
  attempt: number;
  maxAttempts: number;
  progress: number | null;
  progressMessage: string | null;
  tokensUsed: number;
  checkpoint: unknown;
  parentId: string | null;
  createdAt: string;
  /** Null if the job waits for others, and no time wakes it. */
  runAt: string | null;
  startedAt: string | null;
  finishedAt: string | null;
  /** The wait of a WAITING job. */
  waiting: Waiting | null;
  phases: Phase[];
}

export interface EngineQuestion {
  id: string;
  step: string;
  title: string;
  context: unknown;
  schema: Record<string, unknown>;
  actions: { name: string; label?: string | undefined }[];
  assignees: string[];
  expiresAt: string;
}

export interface Engine {
  /** The address of its HTTP API, and a key for it. */
  url: string;
  key: string;
  enqueue(type: string, payload?: unknown, request?: EngineRequest): Promise<EngineJob>;
  job(id: string): Promise<EngineJob>;
  /** Waits until the condition is true; by default until the job is finished, failed or paused. */
  wait(id: string, wanted?: (job: EngineJob) => boolean): Promise<EngineJob>;
  pause(id: string): Promise<void>;
  resume(id: string): Promise<void>;
  cancel(id: string): Promise<void>;
  /** Waits until the job asks a person, and returns the open question. */
  question(jobId: string): Promise<EngineQuestion>;
  /** Answers the question with the fields of the answer, and the `action` if the question has any. */
  answer(jobId: string, answer: Record<string, unknown>): Promise<void>;
  /** Sends an event to the jobs that wait for it, and returns when they were woken. `id` makes it idempotent. */
  sendEvent(name: string, data?: unknown, options?: { id?: string }): Promise<void>;
  /** Moves time for jobs that sleep, wait or are scheduled: `advance('3d')`. */
  advance(duration: Duration): Promise<void>;
  stop(): Promise<void>;
}

const settings = {
  PORT: '0',
  LOG_LEVEL: 'silent',
  HEARTBEAT_INTERVAL_SECONDS: '0.2',
  LEASE_SECONDS: '5',
  POLL_INTERVAL_SECONDS: '0.5',
  CANCEL_GRACE_SECONDS: '2',
  // Not used; without it the daemon would create an admin key in the database.
  ADMIN_API_KEY: randomBytes(24).toString('hex'),
};
const stoppedStatuses: readonly string[] = [...terminalStatuses, ...heldStatuses];
const maxWaitMs = 60_000;

export async function startEngine(options: EngineOptions): Promise<Engine> {
  const config = loadConfig({ ...settings, ...options.settings });
  const logger = createLogger(config.logLevel);
  const postgres = options.databaseUrl === undefined ? await temporaryPostgres() : undefined;
  const threads = new ThreadPool({ maxThreads: config.handlerThreads, memoryMb: config.handlerThreadMemoryMb, logger });
  const handlers = new HandlerRegistry(options.jobs, threads);
  const databaseUrl = options.databaseUrl ?? postgres?.url ?? '';
  const daemon = new Daemon({ config, databaseUrl, logger, handlers, version: 'test' });
  const stop = async () => {
    await daemon.stop(0);
    await postgres?.stop();
  };
  try {
    await daemon.start();
    const { tenant, key } = await createTenant(daemon.db, { slug: `test_${randomBytes(6).toString('hex')}` });
    await daemon.registry.refresh();
    const by = (jobId: string) => ({ jobId, actor: 'user:test' });
    const job = async (id: string) => {
      const found = await findJob(daemon.db, tenant.schema, id);
      if (found === undefined) throw new Error(`there is no job ${id}`);
      return { ...found, runAt: unlessNever(found.runAt), phases: await listPhases(daemon.db, tenant.schema, id) };
    };
    const question = async (jobId: string) => {
      const deadline = performance.now() + maxWaitMs;
      for (;;) {
        const { questions } = await listQuestions(daemon.db, tenant.schema, { jobId, status: 'open' }, { limit: 1 });
        const [open] = questions;
        if (open !== undefined) return open;
        if (performance.now() > deadline) throw new Error(`job ${jobId} has no open question`);
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    };
    const act = async (work: Promise<unknown>) => {
      await work;
      daemon.signals.workAvailable(tenant);
    };
    return {
      url: daemon.url,
      key: key.text,
      async enqueue(type, payload = {}, { unique, ...request } = {}) {
        const known = { tenant, jobTypes: handlers, liveDaemons: async () => [] };
        const newJob = await toNewJob(
          { type, payload, ...request, unique: unique && parseFields(uniqueRequest, unique, 'unique') },
          known,
        );
        const [refused] = await linkJobs(daemon.db, tenant.schema, [{ job: newJob, after: request.after }]);
        if (refused !== undefined) throw refused;
        const [enqueued] = await daemon.enqueue(tenant, [newJob], 'test');
        if (enqueued === undefined) throw new Error('nothing was enqueued');
        return job(enqueued.job.id);
      },
      job,
      async wait(id, wanted = ({ status }) => stoppedStatuses.includes(status)) {
        const deadline = performance.now() + maxWaitMs;
        for (;;) {
          const now = await job(id);
          if (wanted(now)) return now;
          if (performance.now() > deadline) throw new Error(`job ${id} is still ${now.status}`);
          await new Promise((resolve) => setTimeout(resolve, 20));
        }
      },
      pause: (id) => act(pauseJob(daemon.db, tenant.schema, by(id))),
      resume: (id) => act(resumeJob(daemon.db, tenant.schema, by(id))),
      cancel: (id) => act(cancelJob(daemon.db, tenant.schema, by(id))),
      question,
      async answer(jobId, { action, ...answer }) {
        const request = { questionId: (await question(jobId)).id, answer, action: action as string | undefined };
        await act(answerQuestion(daemon.db, tenant.schema, { ...request, actor: 'user:test' }));
      },
      sendEvent: (name, data, { id } = {}) => act(sendEvent(daemon.db, tenant.schema, { name, data, id })),
      advance: (duration) => act(moveTime(daemon.db, tenant.schema, parseDuration(duration))),
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function sendEvent(db: Database, schema: Schema, event: SentEvent): Promise<void> {
  await receiveEvent(db, schema, event, 'test');
  while ((await deliverEvents(db, schema, 'test')).more);
}

// Longer than a suspension takes. A job that also does something else meanwhile stays RUNNING.
const maxSuspendMs = 2000;

/** Waits until jobs whose calls are stored as open have been suspended: the end of such a wait would not be moved. */
async function suspensionsWritten(db: Database, schema: Schema): Promise<void> {
  const deadline = performance.now() + maxSuspendMs;
  for (;;) {
    const unwritten = await runQuery(
      db,
      `select j.id
         from ${schema}.jobs j
        where j.status = 'RUNNING'
          and exists (select 1
                        from ${schema}.phases p
                       where p.job_id = j.id
                         and p.status = 'running'
                         and p.waits_until is not null)
        limit 1`,
      {},
    );
    if (unwritten.length === 0 || performance.now() > deadline) return;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** Moves the due times of all jobs, and the ends of their waits, closer by this much. */
async function moveTime(db: Database, schema: Schema, ms: number): Promise<void> {
  await suspensionsWritten(db, schema);
  const earlier = `:ms::float8 * interval '1 millisecond'`;
  await db.transaction(async (tx) => {
    await runQuery(
      tx,
      `update ${schema}.phases set waits_until = waits_until - ${earlier} where waits_until is not null`,
      { ms },
    );
    await runQuery(
      tx,
      `update ${schema}.questions
          set expires_at = expires_at - ${earlier},
              escalate_at = escalate_at - ${earlier},
              remind_at = array(select r - ${earlier} from unnest(remind_at) as u(r))
        where status = 'open'`,
      { ms },
    );
    await runQuery(
      tx,
      `update ${schema}.jobs
          set run_at = run_at - ${earlier}
        where ${statusIn(timedStatuses)}
          and run_at < timestamptz '${never}'`,
      { ms },
    );
  });
  while ((await queueDueJobs(db, schema, 'test')) > 0);
}

async function temporaryPostgres(): Promise<{ url: string; stop(): Promise<void> }> {
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-engine-'));
  // Postgres may run as another user.
  await chmod(directory, 0o755);
  const postgres = await startEmbeddedPostgres({ dataDir: join(directory, 'data'), logger: createLogger('silent') });
  return {
    url: postgres.url,
    stop: async () => {
      await postgres.stop();
      await rm(directory, { recursive: true, force: true });
    },
  };
}
