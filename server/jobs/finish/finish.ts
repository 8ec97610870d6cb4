// Ends attempts with the outcomes of their holder, or of the sweeper, fenced by job, lease and status. Many outcomes of
// a tenant are written in one transaction; a job that is not accepted was lost to another holder.

import { encodeUuids } from '../../database/connections/value-formats.ts';
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { type BoundStatement, statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { type Claimed, type NamedClaim, toClaimed } from '../claim/claim.ts';
import type { ClaimedRow } from '../claim/claimed-job.ts';
import { concludeCanaries } from '../lanes/conclude-canaries.ts';
import { demotePaused, distinctTargets, lockTargets, promote } from '../lanes/lane.ts';
import { type CancelDetail, type StopIntent, stoppedByUser } from '../model/job.ts';
import { askAboutBudgets } from '../questions/budget-question.ts';
import { finishStatement, isDelayed, stopRequestGuard } from './finish-statement.ts';
import { entryOf, isAwaiting, isEmpty, isOverBudget, type Outcome, type OutcomeKind } from './outcome.ts';

export interface FinishedAttempt {
  jobId: string;
  leaseId: string;
  targetId: string | null;
  outcome: Outcome;
}

export interface FinishResult {
  /** Job ids whose outcome was accepted. The lease no longer owned the others. */
  accepted: Set<string>;
  /** The next jobs of the lanes that advanced, if `claimNext` was given. */
  claimed: Claimed | undefined;
  /** A lane advanced or a job was requeued: there may be something to claim. */
  runnable: boolean;
}

export interface FinishOptions {
  actor: string;
  /** Leases without further attempts: released in the same transaction, unless a RUNNING job refers to them. */
  endedLeases?: string[];
  /** Claims the next jobs of the lanes that advance, in the same transaction. */
  claimNext?: NamedClaim | undefined;
}

export async function finishAttempts(
  db: Database,
  schema: Schema,
  items: FinishedAttempt[],
  options: FinishOptions,
): Promise<FinishResult> {
  const kind = items[0]?.outcome.kind;
  // Without lanes and with one kind of outcome, one statement does it.
  if (items.every((item) => item.targetId === null && item.outcome.kind === kind && !needsTransaction(item.outcome))) {
    const written = await retryConflicts(() => write(db, schema, items, options));
    const left = supersededByStopRequest(items, written);
    if (left.length === 0) return toFinishResult(items, written);
    const requested = await retryConflicts(() => db.transaction((tx) => finishAsRequested(tx, schema, left, options)));
    return toFinishResult(items, merge([written, requested]));
  }
  // Where no stop request can supersede an outcome, no answer decides what is sent next.
  if (items.every((item) => stopRequestGuard[item.outcome.kind] === undefined && !isOverBudget(item.outcome))) {
    const written = await retryConflicts(() => db.pipelinedTransaction((tx) => write(tx, schema, items, options)));
    // Until this second transaction commits, the lane stays paused. If the daemon dies before it, the sweeper does this.
    if (written.canary) {
      await retryConflicts(() => db.transaction((tx) => endCanaries(tx, schema, items, options, written)));
    }
    return toFinishResult(items, written);
  }
  return retryConflicts(() => db.transaction((tx) => finishAttemptsIn(tx, schema, items, options)));
}

export async function finishAttemptsIn(
  tx: Queryable,
  schema: Schema,
  items: FinishedAttempt[],
  options: FinishOptions,
): Promise<FinishResult> {
  const written = await write(tx, schema, items, options);
  const left = supersededByStopRequest(items, written);
  const all = left.length === 0 ? written : merge([written, await finishAsRequested(tx, schema, left, options)]);
  if (all.canary) await endCanaries(tx, schema, items, options, all);
  const stopped = items.flatMap(({ jobId, outcome }) =>
    isOverBudget(outcome) && all.accepted.has(jobId) ? [{ jobId, error: outcome.error }] : [],
  );
  if (stopped.length > 0) await askAboutBudgets(tx, schema, stopped, options.actor);
  return toFinishResult(items, all);
}

function needsTransaction(outcome: Outcome): boolean {
  return isAwaiting(outcome) || isOverBudget(outcome);
}

/** Releases, or leaves paused, the lanes whose canary has ended. */
async function endCanaries(
  tx: Queryable,
  schema: Schema,
  items: FinishedAttempt[],
  { actor }: FinishOptions,
  written: Written,
): Promise<void> {
  const targets = distinctTargets(items);
  await lockTargets(tx, schema, targets);
  const released = await concludeCanaries(tx, schema, targets, actor);
  const promoted = await promote(tx, schema, released);
  written.promoted ||= promoted.length > 0;
}

interface Written {
  /** The ids of the jobs whose outcome was accepted. */
  accepted: Set<string>;
  claimed: Claimed | undefined;
  /** A lane has another head, which did not start. */
  promoted: boolean;
  /** One of the jobs was the canary of its target. */
  canary: boolean;
}

function merge(parts: Written[]): Written {
  const [first, ...others] = parts;
  if (first === undefined) return { accepted: new Set(), claimed: undefined, promoted: false, canary: false };
  for (const part of others) for (const id of part.accepted) first.accepted.add(id);
  return {
    accepted: first.accepted,
    claimed: parts.find((part) => part.claimed !== undefined)?.claimed,
    promoted: parts.some((part) => part.promoted),
    canary: parts.some((part) => part.canary),
  };
}

function toFinishResult(items: FinishedAttempt[], { accepted, claimed, promoted }: Written): FinishResult {
  return { accepted, claimed, runnable: promoted || items.some(isRequeued) };
}

/** Writes all outcomes and advances their lanes. Everything is sent before the first answer arrives. */
async function write(
  tx: Queryable,
  schema: Schema,
  items: FinishedAttempt[],
  options: FinishOptions,
): Promise<Written> {
  const targets = distinctTargets(items);
  const groups = [...groupByKind(items)].sort(([, a], [, b]) => b.length - a.length);
  // The next jobs are claimed with the largest group. Leases end with the last: it sees what those before it wrote.
  // Values that cannot be encoded fail before anything is sent.
  const statements = groups.map(([kind, group], n) =>
    bindFinish(schema, kind, group, {
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

/** Jobs that wait for others: the statement after this lock sees what has come before it, an answer for example. */
async function lockAwaiting(tx: Queryable, schema: Schema, items: FinishedAttempt[]): Promise<void> {
  const jobIds = items.filter((item) => isAwaiting(item.outcome)).map((item) => item.jobId);
  if (jobIds.length > 0) await awaitingStatement.query(tx, schema, { jobIds });
}

/** Outcomes that may have been refused because a person requested a pause or cancel. */
function supersededByStopRequest(items: FinishedAttempt[], { accepted }: Written): FinishedAttempt[] {
  if (accepted.size === items.length) return [];
  return items.filter((item) => stopRequestGuard[item.outcome.kind] !== undefined && !accepted.has(item.jobId));
}

interface StopRequestRow {
  id: string;
  lease_id: string;
  intent: StopIntent;
  detail: CancelDetail | null;
}

const requestsStatement = statement(`
  select id, lease_id, cancel_intent as intent, cancel_detail as detail
    from ${tenant}.jobs
   where id = any(:jobIds::uuid[])
     and status = 'RUNNING'
     and cancel_intent is not null
   order by id
     for update`);

/** Ends those attempts as requested. */
async function finishAsRequested(
  tx: Queryable,
  schema: Schema,
  items: FinishedAttempt[],
  { actor, endedLeases = [] }: FinishOptions,
): Promise<Written> {
  const rows = await requestsStatement.query<StopRequestRow>(tx, schema, { jobIds: items.map((item) => item.jobId) });
  const byId = new Map(rows.map((row) => [row.id, row]));
  const requested = items.flatMap((item): FinishedAttempt[] => {
    const row = byId.get(item.jobId);
    if (row?.lease_id !== item.leaseId) return [];
    const kind = row.intent === 'pause' ? 'stopPaused' : 'stopCanceled';
    const { handler } = item.outcome;
    return [{ ...item, outcome: { kind, message: stoppedByUser[row.intent], by: row.detail ?? undefined, handler } }];
  });
  return write(tx, schema, requested, { actor, endedLeases });
}

function isRequeued(item: FinishedAttempt): boolean {
  return item.outcome.kind === 'requeue' || item.outcome.kind === 'recover';
}

function groupByKind(items: FinishedAttempt[]): Map<OutcomeKind, FinishedAttempt[]> {
  const groups = new Map<OutcomeKind, FinishedAttempt[]>();
  for (const item of items) {
    const group = groups.get(item.outcome.kind);
    if (group) group.push(item);
    else groups.set(item.outcome.kind, [item]);
  }
  return groups;
}

interface FinishSummary {
  accepted: number;
  /** Only if some were refused: a thousand jobs that end as they should need no answer each. */
  ids: string[] | null;
  promoted: boolean;
  canary?: boolean;
}

interface FinishGroup extends BoundStatement {
  read(rows: FinishRow[]): Written;
}

/** One row has the summary; the others are jobs that start. */
type FinishRow = ClaimedRow & { summary: FinishSummary | null };

/** The statement for outcomes of one kind. */
function bindFinish(schema: Schema, kind: OutcomeKind, items: FinishedAttempt[], options: FinishOptions): FinishGroup {
  const leaseId = items[0]?.leaseId;
  const oneLease = items.every((item) => item.leaseId === leaseId);
  const isBare = kind === 'complete' && items.every((item) => isEmpty(item.outcome));
  const entries: Record<string, object> = {};
  let hasEventData = false;
  // With one fence and no results there is nothing to look up.
  for (const item of isBare && oneLease ? [] : items) {
    const entry = entryOf(item.outcome);
    hasEventData ||= entry.eventData !== undefined;
    entries[item.jobId] = { lease: item.leaseId, ...entry };
  }
  const next = options.claimNext;
  const hasLanes = items.some((item) => item.targetId !== null);
  const lanes = !hasLanes ? 'none' : next === undefined ? 'promote' : 'claim';
  const statement = finishStatement({ kind, oneLease, hasEntries: !isBare, hasEventData, lanes });
  const bound = statement.bind(schema, {
    jobIds: isDelayed(kind) ? undefined : encodeUuids(items.map((item) => item.jobId)),
    entries: statement.uses('entries') ? JSON.stringify(entries) : undefined,
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
  return { ...bound, read: (rows) => writtenOf(items, rows, next) };
}

function writtenOf(items: FinishedAttempt[], rows: FinishRow[], request: NamedClaim | undefined): Written {
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
