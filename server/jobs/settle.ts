// How an attempt ends: the holder's (or the sweeper's) outcome, fenced by job, lease and status.
// Many outcomes of a tenant are settled in one transaction; zero rows for a job means it was lost.
import { type Database, type Queryable, retryConflicts } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { insertEvents } from '../events/record.ts';
import type { JobError } from './job.ts';
import { demotePaused, distinctTargets, lockTargets, promote } from './lane.ts';
import { become, guard, type TransitionName, transitions } from './states.ts';

export type Outcome =
  | { kind: 'complete'; result: unknown }
  | { kind: 'completePartly'; result: unknown; error?: JobError }
  | { kind: 'retry'; error: JobError; delayMs: number }
  | { kind: 'fail'; error: JobError }
  | { kind: 'stopPaused'; message: string; by?: object | undefined }
  | { kind: 'stopCanceled'; message: string; by?: object | undefined }
  | { kind: 'giveBack'; reason: string }
  | { kind: 'recover'; error: JobError }
  | { kind: 'recoverLater'; error: JobError; delayMs: number };

type OutcomeKind = Outcome['kind'];

export interface Settlement {
  jobId: string;
  leaseId: string;
  targetId: string | null;
  outcome: Outcome;
}

export interface Settled {
  /** Job ids whose outcome was accepted. All others were no longer ours. */
  accepted: Set<string>;
  /** A lane moved on or a job went back: there may be something to claim. */
  runnable: boolean;
}

export interface SettleOptions {
  actor: string;
  /** Leases of which nothing is left to settle: they are released in the same transaction. */
  endedLeases?: string[];
}

export async function settle(
  db: Database,
  schema: Schema,
  items: Settlement[],
  options: SettleOptions,
): Promise<Settled> {
  return retryConflicts(() => {
    const first = items[0];
    const alone =
      first !== undefined && items.every((i) => i.targetId === null && i.outcome.kind === first.outcome.kind);
    // Without lanes and with one kind of outcome there is nothing to hold together: one statement.
    if (alone)
      return settleKind(db, schema, first.outcome.kind, items, options).then((ids) => toSettled(items, ids, 0));
    return db.transaction((tx) => settleIn(tx, schema, items, options));
  });
}

export async function settleIn(
  tx: Queryable,
  schema: Schema,
  items: Settlement[],
  options: SettleOptions,
): Promise<Settled> {
  const targets = distinctTargets(items);
  await lockTargets(tx, schema, targets);
  const accepted: string[] = [];
  let ended = options.endedLeases;
  for (const [kind, group] of groupByKind(items)) {
    accepted.push(
      ...(await settleKind(tx, schema, kind, group, { actor: options.actor, ...(ended && { endedLeases: ended }) })),
    );
    ended = undefined;
  }
  if (items.some(goesBack)) await demotePaused(tx, schema, targets);
  const promoted = await promote(tx, schema, targets);
  return toSettled(items, accepted, promoted.length);
}

function toSettled(items: Settlement[], accepted: string[], promoted: number): Settled {
  return { accepted: new Set(accepted), runnable: promoted > 0 || items.some(goesBack) };
}

function goesBack(item: Settlement): boolean {
  return item.outcome.kind === 'giveBack' || item.outcome.kind === 'recover';
}

function groupByKind(items: Settlement[]): Map<OutcomeKind, Settlement[]> {
  const groups = new Map<OutcomeKind, Settlement[]>();
  for (const item of items) {
    const group = groups.get(item.outcome.kind);
    if (group) group.push(item);
    else groups.set(item.outcome.kind, [item]);
  }
  return groups;
}

// What each outcome writes beside the status. `v` is the job's entry of the $2 object.
const finishes = `finished_at = now(), lane_head = (target_id is null), progress = 100,`;
const holds = `held_since = now(),`;
const writes: Record<OutcomeKind, string> = {
  complete: `${finishes} result = v -> 'result', error = null,`,
  completePartly: `${finishes} result = v -> 'result', error = v -> 'error',`,
  retry: `run_at = due_at, error = v -> 'error',`,
  fail: `finished_at = now(), ${holds} error = v -> 'error', lane_head = (target_id is null or on_error = 'block'),`,
  stopPaused: `${holds} error = v -> 'error',`,
  stopCanceled: `finished_at = now(), lane_head = (target_id is null), error = v -> 'error',`,
  giveBack: `attempt = attempt - 1,`,
  recover: `error = v -> 'error',`,
  recoverLater: `run_at = due_at, error = v -> 'error',`,
};

// What becomes of the phases that have not ended. Where there is nothing to do the statement stays as it is.
const phaseWrites: Partial<Record<OutcomeKind, string>> = {
  retry: interrupted('running', 'pending'),
  recover: interrupted('running', 'pending'),
  recoverLater: interrupted('running', 'pending'),
  stopPaused: interrupted('running', 'pending'),
  giveBack: interrupted('running', 'pending'),
  fail: interrupted('running', 'failed', `error = s.v -> 'error', finished_at = now(),`),
  stopCanceled: interrupted(`pending', 'running`, 'cancelled', 'finished_at = now(),'),
};

function interrupted(from: string, to: string, more = ''): string {
  return `set ${more} status = '${to}' from settled s where p.job_id = s.id and p.status in ('${from}')`;
}

async function settleKind(
  tx: Queryable,
  schema: Schema,
  kind: OutcomeKind,
  items: Settlement[],
  options: SettleOptions,
): Promise<string[]> {
  const transition: TransitionName = kind;
  const entries = items.map((item) => ({ id: item.jobId, lease: item.leaseId, ...entryOf(item.outcome) }));
  const rows = await tx.query<{ id: string }>(
    `with given as (
       select g.id, g.lease, g.v, now() + g.delay * interval '1 millisecond' as due_at
         from jsonb_to_recordset($2::jsonb) as g(id uuid, lease uuid, delay float8, v jsonb)),
     settled as (
       update ${schema}.jobs j set ${become(transition)}, ${writes[kind]} lease_owner = null, cancel_requested = false,
         cancel_intent = null, cancel_detail = null, updated_at = now()
         from given g
        where j.id = any($1::uuid[]) and j.id = g.id and j.lease_id = g.lease and ${guard(transition, 'j')}
       returning j.id, j.target_id, j.attempt, j.lease_id, g.v),
     ${phaseWrites[kind] === undefined ? '' : `phased as (update ${schema}.phases p ${phaseWrites[kind]}),`}
     ended as (delete from ${schema}.leases where id = any($4::uuid[]) and kind = 'local'),
     told as (${insertEvents(schema, {
       source: 'settled',
       type: `'${transitions[transition].event}'`,
       actor: '$3',
       from: `'RUNNING'`,
       to: `'${transitions[transition].to}'`,
       data: `v -> 'told'`,
     })})
     select id from settled`,
    [items.map((i) => i.jobId), JSON.stringify(entries), options.actor, options.endedLeases ?? []],
  );
  return rows.map((row) => row.id);
}

/** `v` holds what is written to the job and, under `told`, what the event says. */
function entryOf(outcome: Outcome): { delay: number; v: object } {
  switch (outcome.kind) {
    case 'complete':
      return { delay: 0, v: { result: outcome.result ?? null } };
    case 'completePartly':
      return { delay: 0, v: { result: outcome.result ?? null, error: outcome.error, told: outcome.error } };
    case 'retry':
    case 'recoverLater':
      return {
        delay: outcome.delayMs,
        v: { error: outcome.error, told: { error: outcome.error, delay_ms: outcome.delayMs } },
      };
    case 'fail':
    case 'recover':
      return { delay: 0, v: { error: outcome.error, told: { error: outcome.error } } };
    case 'stopPaused':
    case 'stopCanceled': {
      const code = outcome.kind === 'stopPaused' ? 'PAUSED' : 'CANCELED';
      return {
        delay: 0,
        v: { error: { code, message: outcome.message }, told: { ...outcome.by, message: outcome.message } },
      };
    }
    case 'giveBack':
      return { delay: 0, v: { told: { reason: outcome.reason } } };
  }
}
