// Binds outcomes of one kind to the statement that writes them, and reads its answer.
import { encodeUuids } from '../../database/connections/value-formats.ts';
import type { Schema } from '../../database/identifiers.ts';
import type { BoundStatement } from '../../database/sql.ts';
import { writeJson } from '../../kernel/json.ts';
import { type Claimed, type NamedClaim, toClaimed } from '../claim/claim.ts';
import type { ClaimedRow } from '../claim/claimed-job.ts';
import { isDelayed } from './due-times.ts';
import { finishStatement } from './finish-statement.ts';
import { entryOf, type FinishedAttempt, isEmpty, type OutcomeKind } from './outcome.ts';

export interface FinishOptions {
  actor: string;
  /** Leases without further attempts: released in the same transaction, unless a RUNNING job refers to them. */
  endedLeases?: string[];
  /** Claims the next jobs of the lanes that advance, in the same transaction. */
  claimNext?: NamedClaim | undefined;
}

interface FinishSummary {
  accepted: number;
  /** Only if some were refused: a thousand jobs that end as they should need no answer each. */
  ids: string[] | null;
  promoted: boolean;
  canary?: boolean;
}

export interface StatementResult {
  /** The ids of the jobs whose outcome was accepted. */
  accepted: Set<string>;
  claimed: Claimed | undefined;
  /** A lane has another head, which did not start. */
  promoted: boolean;
  /** One of the jobs was the canary of its target. */
  canary: boolean;
}

interface FinishGroup extends BoundStatement {
  read(rows: FinishRow[]): StatementResult;
}

/** One row has the summary; the others are jobs that start. */
export type FinishRow = ClaimedRow & { summary: FinishSummary | null };

/** The statement for outcomes of one kind. */
export function bindFinish(
  schema: Schema,
  kind: OutcomeKind,
  items: FinishedAttempt[],
  withAsked: boolean,
  options: FinishOptions,
): FinishGroup {
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
  const statement = finishStatement({ kind, oneLease, hasEntries: !isBare, hasEventData, withAsked, lanes });
  const bound = statement.bind(schema, {
    jobIds: isDelayed(kind) ? undefined : encodeUuids(items.map((item) => item.jobId)),
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
  return { ...bound, read: (rows) => writtenOf(items, rows, next) };
}

function writtenOf(items: FinishedAttempt[], rows: FinishRow[], request: NamedClaim | undefined): StatementResult {
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
