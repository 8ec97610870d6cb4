// Writes the effects of a handler to its tenant's schema. Every write is fenced. The first refused write ends the
// attempt with `leaseLost`, and nothing is written after it.

import { setTimeout as delay } from 'node:timers/promises';
import { isConnectionError, isTransient } from '../../database/sql-errors.ts';
import { DatabaseSteps, retryWhileHeld } from '../../durable/database/database-steps.ts';
import { enqueueChild } from '../../durable/database/enqueue-children.ts';
import type { ChildOptions, EnqueuedChild } from '../../durable/durable-context.ts';
import { Fatal } from '../../durable/handler-errors.ts';
import type { LogLevel } from '../../durable/step-store.ts';
import { JobStopped, throwIfLeaseLost } from '../../durable/stop-reason.ts';
import { storableText, toStorable } from '../../durable/storable.ts';
import { appendLogs, type NewLogLine, trimLogs } from '../../jobs/attempt/logs.ts';
import { type Report, saveCheckpoint, saveReport } from '../../jobs/attempt/report.ts';
import { isHeld, leaseLeftMs } from '../../jobs/claim/lease.ts';
import {
  type BudgetRules,
  budgetRules,
  findSpent,
  findSpentDay,
  type Spent,
  sumOf,
  type Units,
  usageScopes,
} from '../../jobs/model/job-budget.ts';
import { monotonicMs } from '../../kernel/clock.ts';
import { errorMessage } from '../../kernel/errors.ts';
import { Coalescer } from './coalesce.ts';
import { type Effects, type HandlerRun, type LeaseAssertion, overallProgress, type PhaseScope } from './handler-run.ts';

// Often enough for a person who watches the progress, and rarely enough for the database.
const reportEveryMs = 250;
const maxProgressMessageLength = 1000;
// Two and a half seconds, well within a lease: the outcome waits for the last report.
const maxFlushFailures = 10;

export class DatabaseEffects implements Effects {
  readonly steps: DatabaseSteps;
  readonly #run: HandlerRun;
  readonly #actor: string;
  #reports: Coalescer<Report> | undefined;
  #logs: LogWriter | undefined;
  readonly #usage: Units;
  readonly #rules: BudgetRules;
  #lost = false;

  constructor(run: HandlerRun) {
    this.#run = run;
    this.steps = new DatabaseSteps(run);
    this.#actor = `worker:${run.job.leaseOwner ?? run.config.workerId}`;
    this.#usage = { ...run.job.usage, tokens: run.job.tokensUsed };
    this.#rules = budgetRules(run.tenant, run.config.tokenLimit);
  }

  progress(percent: number, message: string | undefined, phase: PhaseScope | undefined): void {
    const text = message === undefined ? undefined : storableText(String(message), maxProgressMessageLength);
    this.#report({
      progress: {
        percent: overallProgress(percent, phase),
        message: text,
        phase: phase && { name: phase.name, percent },
      },
    });
  }

  addUsage(usage: Units): void {
    const changed: Units = {};
    for (const [unit, amount] of Object.entries(usage)) {
      if (amount === 0) continue;
      changed[unit] = sumOf(this.#usage[unit], amount);
      this.#usage[unit] = changed[unit];
    }
    if (Object.keys(changed).length > 0) this.#report({ usage: changed });
    this.#stopIf(findSpent(this.#run.job, this.#usage, this.#rules));
  }

  #stopIf(spent: Spent | undefined): void {
    if (spent !== undefined) this.#run.stop({ kind: 'budgetSpent', ...spent });
  }

  log(level: LogLevel, message: string, data: Record<string, unknown> | undefined): void {
    const { db, tenant, job, logger } = this.#run;
    this.#logs ??= new LogWriter(
      {
        append: (lines) => this.#fenced(() => appendLogs(db, tenant.schema, this.#held, lines)),
        trim: () => trimLogs(db, tenant.schema, job.id),
        onError: (error) => logger.warn({ err: error, jobId: job.id }, 'job log could not be written yet'),
      },
      job.attempt > 1,
    );
    this.#logs.log(level, message, data);
  }

  async assertLease(): Promise<LeaseAssertion> {
    for (;;) {
      const sentAt = monotonicMs();
      const leftMs = await leaseLeftMs(this.#run.db, this.#run.tenant.schema, this.#held);
      await throwIfLeaseLost(this.#run);
      if (leftMs === undefined) {
        this.#lose();
        throw new JobStopped({ kind: 'leaseLost' });
      }
      // The process may have been suspended since the server answered. The answer is then outdated, so the check is
      // repeated.
      if (monotonicMs() < sentAt + leftMs) return { validUntilMs: sentAt + leftMs };
    }
  }

  async enqueue(key: string, type: string, payload: unknown, options: ChildOptions): Promise<EnqueuedChild> {
    const request = { key, type, payload, options, actor: this.#actor };
    const child = await retryWhileHeld(this.#run, () => enqueueChild(this.#run, request));
    if (child !== undefined) return child;
    this.#lose();
    throw new JobStopped({ kind: 'leaseLost' });
  }

  async checkpoint(state: unknown): Promise<void> {
    const { db, tenant, config } = this.#run;
    const stored = toStorable(state, config.resultLimitBytes, 'The checkpoint');
    if (!stored.ok) throw new Fatal(stored.error.message, { code: stored.error.code });
    const save = () => saveCheckpoint(db, tenant.schema, this.#held, stored.value);
    await retryWhileHeld(this.#run, () => this.#fenced(save));
    if (this.#lost) throw new JobStopped({ kind: 'leaseLost' });
  }

  async flush(): Promise<void> {
    const { logger, job } = this.#run;
    const ends = await Promise.allSettled([this.#flushReports(), this.#logs?.flush()]);
    for (const end of ends) {
      if (end.status === 'rejected') logger.warn({ err: end.reason, jobId: job.id }, 'report of a job was lost');
    }
  }

  /** The last report has the usage of the attempt, which must not be lost because of a passing error. */
  async #flushReports(): Promise<void> {
    for (let failures = 1; ; failures++) {
      try {
        return await this.#reports?.flush();
      } catch (error) {
        const isPassing = isConnectionError(error) || isTransient(error);
        if (!isPassing || failures === maxFlushFailures) throw error;
        await delay(reportEveryMs);
      }
    }
  }

  get #held() {
    return { jobId: this.#run.job.id, leaseId: this.#run.leaseId };
  }

  #report(report: Report): void {
    const { db, tenant, job, logger } = this.#run;
    const { budgets = {} } = this.#rules;
    this.#reports ??= new Coalescer<Report>({
      everyMs: reportEveryMs,
      merge: (older, newer) => ({
        ...older,
        ...newer,
        ...((older.usage ?? newer.usage) && { usage: { ...older.usage, ...newer.usage } }),
      }),
      write: (merged) =>
        this.#fenced(async () => {
          const report = merged.usage === undefined ? merged : { ...merged, scopes: usageScopes(job, budgets) };
          const saved = await saveReport(db, tenant.schema, this.#held, report, this.#actor);
          this.#stopIf(findSpentDay(job, saved?.days ?? [], budgets));
          return saved !== undefined;
        }),
      onError: (error) =>
        logger.warn({ reason: errorMessage(error), jobId: job.id }, 'report of a job could not be written yet'),
    });
    this.#reports.put(report);
  }

  async #fenced(write: () => Promise<boolean>): Promise<void> {
    if (this.#lost) return;
    if (await write()) return;
    // While a tenant moves between nodes, a fenced write can miss an existing row. This checks the row and writes
    // again.
    if ((await isHeld(this.#run.db, this.#run.tenant.schema, this.#held)) && (await write())) return;
    this.#lose();
  }

  #lose(): void {
    this.#lost = true;
    this.#run.stop({ kind: 'leaseLost' });
  }
}

// Buffers a job's log lines and writes them in batches. A handler that logs faster than the database writes loses its
// oldest unwritten lines; the log records how many.

interface Line {
  level: LogLevel;
  message: string;
  data?: Record<string, unknown> | undefined;
  loggedAt: number;
}

interface LogBatch {
  lines: Line[];
  dropped: number;
}

interface LogTarget {
  append(lines: NewLogLine[]): Promise<void>;
  trim(): Promise<void>;
  onError(error: unknown): void;
}

const everyMs = 250;
const maxWaiting = 1000;
const maxMessageLength = 8000;
const maxDataBytes = 16_384;
// The number of lines between two trims. The table has at most this many lines more than it keeps.
const trimEvery = 500;

class LogWriter {
  readonly #target: LogTarget;
  readonly #writer: Coalescer<LogBatch>;
  #sinceTrim: number;

  /** `mayHaveOld`: earlier attempts may have written lines, so the first flush trims. */
  constructor(target: LogTarget, mayHaveOld: boolean) {
    this.#target = target;
    this.#sinceTrim = mayHaveOld ? trimEvery : 0;
    this.#writer = new Coalescer<LogBatch>({
      everyMs,
      delayFirst: true,
      merge: (older, newer) => bounded([...older.lines, ...newer.lines], older.dropped + newer.dropped),
      write: (batch) => this.#write(batch),
      onError: target.onError,
    });
  }

  log(level: LogLevel, message: string, data: Record<string, unknown> | undefined): void {
    const line: Line = { level, message: storableText(message, maxMessageLength), loggedAt: performance.now() };
    if (data !== undefined) {
      const kept = toStorable(data, maxDataBytes, 'data');
      line.data = kept.ok ? (kept.value as Record<string, unknown>) : { not_stored: kept.error.message };
    }
    this.#writer.put({ lines: [line], dropped: 0 });
  }

  flush(): Promise<void> {
    return this.#writer.flush();
  }

  async #write({ lines, dropped }: LogBatch): Promise<void> {
    const now = performance.now();
    const logged: NewLogLine[] = lines.map(({ loggedAt, ...line }) => ({ ...line, ageMs: now - loggedAt }));
    if (dropped > 0)
      logged.unshift({ level: 'warn', message: `${dropped} lines were dropped: logged too fast`, ageMs: 0 });
    await this.#target.append(logged);
    this.#sinceTrim += logged.length;
    if (this.#sinceTrim < trimEvery) return;
    this.#sinceTrim = 0;
    await this.#target.trim();
  }
}

function bounded(lines: Line[], dropped: number): LogBatch {
  const over = Math.max(0, lines.length - maxWaiting);
  return { lines: over === 0 ? lines : lines.slice(over), dropped: dropped + over };
}
