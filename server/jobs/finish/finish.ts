// Ends attempts with outcomes of their holder or of the sweeper, fenced by job, lease and status. Many outcomes of a
// tenant are written in one transaction. An outcome that is not accepted lost its lease to another holder.

import { encodeUuids } from '../../database/connections/value-formats.ts';
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { type BoundStatement, statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { writeJson } from '../../kernel/json/json-text.ts';
import { type Claimed, type NamedClaim, toClaimed } from '../claim/claim.ts';
import type { ClaimedRow } from '../claim/claimed-job.ts';
import { concludeCanaries } from '../lanes/conclude-canaries.ts';
import { demotePaused, distinctTargets, lockTargets, promote } from '../lanes/lane.ts';
import type { StopRequest } from '../model/job.ts';
import { askAboutBudgets } from '../questions/budget-question.ts';
import { closeQuestions } from '../questions/close-questions.ts';
import { finishStatement } from './finish-statement.ts';
import { endsJob, entryOf, type FinishedAttempt, isAwaiting, isEmpty, isOverBudget, isRequeued } from './outcome.ts';
import { endOf, groupByEnd, isSupersedable, requestedOutcome, type WrittenEnd } from './stop-decisions.ts';

export interface FinishOptions {
  actor: string;
  /**
   * Leases that have no other attempt. They are released in the same transaction unless a RUNNING job refers to them.
   */
  endedLeases?: string[];
  /** Claims the next jobs of the lanes that advance, in the same transaction. */
  claimNext?: NamedClaim | undefined;
}

export interface FinishResult {
  /** Job ids whose outcome was accepted. The lease no longer owned the others. */
  accepted: Set<string>;
  /** The next jobs of the lanes that advanced, if `claimNext` was given. */
  claimed: Claimed | undefined;
  /** A lane advanced or a job was requeued: there may be something to claim. */
  runnable: boolean;
}

export async function finishAttempts(
  db: Database,
  schema: Schema,
  items: FinishedAttempt[],
  options: FinishOptions,
): Promise<FinishResult> {
  const hasLanes = items.some((item) => item.targetId !== null);
  // Without lanes and with one kind of end, one statement is enough.
  if (
    !hasLanes &&
    groupByEnd(items).size <= 1 &&
    !items.some(({ outcome }) => isAwaiting(outcome) || isOverBudget(outcome))
  ) {
    const written = await retryConflicts(() => write(db, schema, items, options));
    const left = refused(items, written);
    if (left.length === 0) return toFinishResult(items, written);
    const later = await retryConflicts(() => db.transaction((tx) => finishRefused(tx, schema, left, options)));
    return toFinishResult(items, merge([written, later]));
  }
  // No stop request can supersede these outcomes, so no statement depends on the result of an earlier one.
  if (items.every((item) => !isSupersedable(endOf(item.outcome)) && !isOverBudget(item.outcome))) {
    const first = await retryConflicts(() => db.pipelinedTransaction((tx) => write(tx, schema, items, options)));
    const left = refused(items, first);
    if (left.length === 0 && !first.canary) return toFinishResult(items, first);
    // The lane stays paused until this second transaction commits. If the daemon dies before, the sweeper does the
    // same.
    return retryConflicts(() => db.transaction((tx) => finishRemaining(tx, schema, items, options, first)));
  }
  return retryConflicts(() => db.transaction((tx) => finishAttemptsIn(tx, schema, items, options)));
}

export async function finishAttemptsIn(
  tx: Queryable,
  schema: Schema,
  items: FinishedAttempt[],
  options: FinishOptions,
): Promise<FinishResult> {
  return finishRemaining(tx, schema, items, options, await write(tx, schema, items, options));
}

/**
 * Writes the rest: outcomes that the first write refused, lanes whose canary has ended, and questions about budgets.
 */
async function finishRemaining(
  tx: Queryable,
  schema: Schema,
  items: FinishedAttempt[],
  options: FinishOptions,
  first: StatementResult,
): Promise<FinishResult> {
  const left = refused(items, first);
  const all = left.length === 0 ? first : merge([first, await finishRefused(tx, schema, left, options)]);
  if (all.canary) {
    const targets = distinctTargets(items);
    await lockTargets(tx, schema, targets);
    const released = await concludeCanaries(tx, schema, targets, options.actor);
    const promoted = await promote(tx, schema, released);
    all.promoted ||= promoted.length > 0;
  }
  const stopped = items.flatMap(({ jobId, outcome }) =>
    isOverBudget(outcome) && all.accepted.has(jobId) ? [{ jobId, error: outcome.error }] : [],
  );
  if (stopped.length > 0) await askAboutBudgets(tx, schema, stopped, options.actor);
  return toFinishResult(items, all);
}

/** Returns a copy, because a transaction that is retried starts from the same first result. */
function merge(parts: StatementResult[]): StatementResult {
  const [first] = parts;
  if (first !== undefined && parts.length === 1) return first;
  return {
    accepted: new Set(parts.flatMap((part) => [...part.accepted])),
    claimed: parts.find((part) => part.claimed !== undefined)?.claimed,
    promoted: parts.some((part) => part.promoted),
    canary: parts.some((part) => part.canary),
  };
}

function toFinishResult(items: FinishedAttempt[], { accepted, claimed, promoted }: StatementResult): FinishResult {
  return { accepted, claimed, runnable: promoted || items.some(isRequeued) };
}

/** Writes all outcomes and advances their lanes. All statements are sent before the first answer arrives. */
async function write(
  tx: Queryable,
  schema: Schema,
  items: FinishedAttempt[],
  options: FinishOptions,
  withAsked = false,
): Promise<StatementResult> {
  const targets = distinctTargets(items);
  const groups = [...groupByEnd(items)].sort(([, a], [, b]) => b.length - a.length);
  // The largest group claims the next jobs. The last group ends the leases, because it sees the writes of those before
  // it. Values that cannot be encoded fail before anything is sent.
  const statements = groups.map(([end, group], n) =>
    bindFinish(schema, end, group, withAsked && group.some((item) => endsJob(item.outcome.kind)), {
      actor: options.actor,
      ...(n === 0 && { claimNext: options.claimNext }),
      ...(n === groups.length - 1 && options.endedLeases && { endedLeases: options.endedLeases }),
    }),
  );
  const locked = lockTargets(tx, schema, targets);
  const awaiting = lockAwaiting(tx, schema, items);
  const written = statements.map(async ({ text, values, read }) =>
    read(await tx.query<FinishRow>(text, values, 'keepPlan')),
  );
  const demoted = items.some(isRequeued) ? demotePaused(tx, schema, targets) : undefined;
  const [parts] = await Promise.all([Promise.all(written), locked, awaiting, demoted]);
  return merge(parts);
}

const awaitingStatement = statement(`
  select id
    from ${tenant}.jobs
   where id = any(:jobIds::uuid[])
   order by id
     for update`);

/** Locks jobs that wait for an answer or an event, so that the next statement sees whatever arrived before the lock. */
async function lockAwaiting(tx: Queryable, schema: Schema, items: FinishedAttempt[]): Promise<void> {
  const jobIds = items.filter((item) => isAwaiting(item.outcome)).map((item) => item.jobId);
  if (jobIds.length > 0) await awaitingStatement.query(tx, schema, { jobIds });
}

/** Selects outcomes that may have been refused because of a stop request, or because the job has asked a question. */
function refused(items: FinishedAttempt[], { accepted }: StatementResult): FinishedAttempt[] {
  if (accepted.size === items.length) return [];
  return items.filter(({ jobId, outcome }) => {
    return (isSupersedable(endOf(outcome)) || endsJob(outcome.kind)) && !accepted.has(jobId);
  });
}

type RefusedRow = StopRequest & { id: string; lease_id: string };

const refusedStatement = statement(`
  select id, lease_id, cancel_intent as "cancelIntent", cancel_detail as "cancelDetail"
    from ${tenant}.jobs
   where id = any(:jobIds::uuid[])
     and status = 'RUNNING'
     and (cancel_intent is not null or asked)
   order by id
     for update`);

/** Ends these attempts as requested, or with their outcome and the end of their open questions. */
async function finishRefused(
  tx: Queryable,
  schema: Schema,
  items: FinishedAttempt[],
  { actor, endedLeases = [] }: FinishOptions,
): Promise<StatementResult> {
  await lockTargets(tx, schema, distinctTargets(items));
  const rows = await refusedStatement.query<RefusedRow>(tx, schema, { jobIds: items.map((item) => item.jobId) });
  const byId = new Map(rows.map((row) => [row.id, row]));
  const left = items.flatMap((item): FinishedAttempt[] => {
    const row = byId.get(item.jobId);
    if (row?.lease_id !== item.leaseId) return [];
    if (endsJob(item.outcome.kind)) return [item];
    const requested = requestedOutcome(endOf(item.outcome), row);
    if (requested === undefined) return [];
    return [{ ...item, outcome: { ...requested, handler: item.outcome.handler } }];
  });
  const written = await write(tx, schema, left, { actor, endedLeases }, true);
  const ended = left.filter(({ jobId, outcome }) => endsJob(outcome.kind) && written.accepted.has(jobId));
  const endedIds = ended.map(({ jobId }) => jobId);
  await closeQuestions(tx, schema, endedIds, actor);
  return written;
}

interface FinishSummary {
  accepted: number;
  /** Null if all outcomes were accepted, so that a thousand ids are not returned. */
  ids: string[] | null;
  promoted: boolean;
  canary?: boolean;
}

interface StatementResult {
  /** The ids of the jobs whose outcome was accepted. */
  accepted: Set<string>;
  claimed: Claimed | undefined;
  /** A lane has a new head that did not start. */
  promoted: boolean;
  /** One of the jobs was the canary of its target. */
  canary: boolean;
}

interface FinishGroup extends BoundStatement {
  read(rows: FinishRow[]): StatementResult;
}

/** One row has the summary; the others are jobs that start. */
type FinishRow = ClaimedRow & { summary: FinishSummary | null };

/** The statement for attempts that ended alike. */
function bindFinish(
  schema: Schema,
  end: WrittenEnd,
  items: FinishedAttempt[],
  withAsked: boolean,
  options: FinishOptions,
): FinishGroup {
  const leaseId = items[0]?.leaseId;
  const oneLease = items.every((item) => item.leaseId === leaseId);
  const isBare = end === 'complete' && items.every((item) => isEmpty(item.outcome));
  const entries: Record<string, object> = {};
  let hasEventData = false;
  // With one lease and no results there is nothing to look up.
  for (const item of isBare && oneLease ? [] : items) {
    const entry = entryOf(item.outcome);
    hasEventData ||= entry.eventData !== undefined;
    entries[item.jobId] = { lease: item.leaseId, ...entry };
  }
  const next = options.claimNext;
  const hasLanes = items.some((item) => item.targetId !== null);
  const lanes = !hasLanes ? 'none' : next === undefined ? 'promote' : 'claim';
  const statement = finishStatement({ end, oneLease, hasEntries: !isBare, hasEventData, withAsked, lanes });
  const bound = statement.bind(schema, {
    jobIds: statement.uses('jobIds') ? encodeUuids(items.map((item) => item.jobId)) : undefined,
    entries: statement.uses('entries') ? writeJson(entries) : undefined,
    leaseId: oneLease ? leaseId : undefined,
    endedLeases: options.endedLeases ?? [],
    actor: options.actor,
    count: items.length,
    ...(lanes === 'claim' &&
      next !== undefined && {
        nextLeaseId: next.leaseId,
        nextOwner: next.owner,
        nextLeaseSeconds: next.leaseSeconds,
        nextTypes: next.types ?? null,
        nextLimit: next.limit,
      }),
  });
  return { ...bound, read: (rows) => toStatementResult(items, rows, next) };
}

function toStatementResult(
  items: FinishedAttempt[],
  rows: FinishRow[],
  request: NamedClaim | undefined,
): StatementResult {
  const summary = rows.find((row) => row.summary !== null)?.summary;
  const accepted = summary?.ids ?? (summary?.accepted === items.length ? items.map((item) => item.jobId) : []);
  const started = rows.filter((row) => row.summary === null);
  const claimed = request && toClaimed(started, 'start', request.leaseId, request.owner);
  return {
    accepted: new Set(accepted),
    claimed,
    promoted: summary?.promoted ?? false,
    canary: summary?.canary ?? false,
  };
}
