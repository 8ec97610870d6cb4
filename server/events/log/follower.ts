// Durable followers of the event log. A follower's effects and its position commit together, so every event has its
// effect exactly once, whichever daemon runs the follower. Statistics, webhooks, seals and retention are followers.

import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { attempt } from '../../database/invalid-rows.ts';
import { type Parameters, runQuery, type Statement, statement, tenant } from '../../database/sql.ts';
import { problem } from '../../kernel/errors.ts';
import type { Event } from './event.ts';
import { beginning, formatPosition, type Position, parsePosition } from './position.ts';
import { nextPosition, readNewEvents, readParameters, selectNewEvents } from './read-new-events.ts';
import { isolateFailingEvent, recordSetAside, type SetAside } from './set-aside.ts';
import { durableSnapshot, isEpochUnregistered, registerEpoch } from './transaction-ids.ts';

export interface FollowResult {
  handled: number;
  /** False if the caller should call again at once. */
  complete: boolean;
  /** Another daemon is running this follower. */
  busy: boolean;
  /** Events that could not be processed and were skipped. */
  setAside?: SetAside[];
}

/** The result of one step: the new position, and the state to store. */
export interface FollowerStep<S extends object> {
  position: Position;
  state: S;
  handled: number;
  complete: boolean;
  moved: boolean;
  ahead: boolean;
}

/** Runs `step` in a transaction that also stores the follower's new position and state. */
export async function runFollowerStep<S extends object>(
  db: Database,
  schema: Schema,
  name: string,
  { startAt = 'beginning' }: { startAt?: 'beginning' | 'now' },
  step: (tx: Queryable, position: Position, state: S) => Promise<FollowerStep<S>>,
): Promise<FollowResult> {
  return db.transaction(async (tx) => {
    const follower = await lockFollower(tx, schema, name);
    if (follower === 'unknown') {
      await createFollower(tx, schema, name, startAt);
      return { handled: 0, complete: false, busy: false };
    }
    if (follower === 'busy') return { handled: 0, complete: true, busy: true };
    const { position, state, handled, complete, moved, ahead } = await step(tx, follower.position, follower.state as S);
    // A tenant without new events costs a read, never a write.
    const isUnchanged = !follower.position.page || formatPosition(position) === follower.stored;
    if (!moved && !ahead && isUnchanged) return { handled: 0, complete, busy: false };
    await advance(tx, schema, name, follower.stored, position, state);
    return { handled, complete, busy: false };
  });
}

interface LockedFollower {
  stored: string;
  position: Position;
  state: object;
}

/**
 * The advisory lock keeps daemons from doing the same work twice, without a write. It is an optimization: `advance`
 * ensures that only one of them commits.
 */
async function lockFollower(tx: Queryable, schema: Schema, name: string): Promise<LockedFollower | 'busy' | 'unknown'> {
  const [row] = await runQuery<{ snapshot: string; state: object; locked: boolean; unregistered: boolean | null }>(
    tx,
    `select snapshot, state, pg_try_advisory_xact_lock(hashtextextended(:lockName, 0)) as locked,
            ${isEpochUnregistered(schema)} as unregistered
       from ${schema}.followers
      where name = :name`,
    { name, lockName: `follower ${schema} ${name}` },
  );
  if (!row) return 'unknown';
  if (!row.locked) return 'busy';
  if (row.unregistered) await registerEpoch(tx, schema);
  const position = parsePosition(row.snapshot);
  if (!position) throw new Error(`follower ${name} of ${schema} has an invalid position`);
  return { stored: row.snapshot, position, state: row.state };
}

async function createFollower(
  tx: Queryable,
  schema: Schema,
  name: string,
  startAt: 'beginning' | 'now',
): Promise<void> {
  // Read first, because Citus inserts nothing for a SELECT with a subquery and no FROM.
  const [row] = await tx.query<{ now: string }>(`select ${durableSnapshot(schema)}::text as now`);
  const snapshot = startAt === 'beginning' ? formatPosition(beginning) : (row?.now ?? null);
  await runQuery(
    tx,
    `insert into ${schema}.followers (name, snapshot) values (:name, :snapshot) on conflict (name) do nothing`,
    { name, snapshot },
  );
}

const advanceStatement = statement(`
  update ${tenant}.followers
     set snapshot = :snapshot,
         state = :state::jsonb,
         updated_at = now()
   where name = :name
     and snapshot = :stored
  returning name`);

/** Zero rows mean that another daemon advanced the follower, and everything the step wrote is rolled back. */
async function advance(
  tx: Queryable,
  schema: Schema,
  name: string,
  stored: string,
  position: Position,
  state: object,
): Promise<void> {
  const rows = await advanceStatement.query(tx, schema, {
    name,
    stored,
    snapshot: formatPosition(position),
    state: JSON.stringify(state),
  });
  if (rows.length === 0) throw problem('CONFLICT', `Another daemon advanced the follower ${name}.`);
}

/** A query over new events that runs in the database, so that unrelated events are never sent. */
export interface Selection {
  name: string;
  limit: number;
  types?: readonly string[] | undefined;
  /**
   * SQL over the placeholder schema: CTEs over the CTE `log`. Its rows are the new events and one header row with
   * `until`.
   */
  ctes: string;
  /** The CTE whose rows are handled. */
  from: string;
  /** The parameters of `ctes`. */
  parameters: Parameters;
}

export interface SelectionHandlers<R extends object> {
  /** Runs in the transaction that advances the follower. Called with at least one row. */
  handle(tx: Queryable, rows: R[]): Promise<void>;
  /** An event was set aside, in this transaction. */
  onSetAside?(tx: Queryable, event: Event, why: SetAside): Promise<void>;
}

/** Runs one step of a follower with a selection. Sets aside an event for which it fails with a data error. */
export async function followSelection<R extends object>(
  db: Database,
  schema: Schema,
  selection: Selection,
  handlers: SelectionHandlers<R>,
): Promise<FollowResult> {
  return isolateFailingEvent(
    selection.limit,
    (limit) =>
      runFollowerStep(db, schema, selection.name, {}, (tx, position, state) =>
        selectStep(tx, schema, { ...selection, limit }, handlers, position, state),
      ),
    () => setAsideNext(db, schema, selection, handlers),
  );
}

interface Header {
  until: string;
  moved: boolean;
  ahead: boolean;
  read: number;
  last_xid: string | null;
  last_seq: string | null;
  found: boolean | null;
}

async function selectStep<R extends object>(
  tx: Queryable,
  schema: Schema,
  selection: Selection,
  { handle }: SelectionHandlers<R>,
  position: Position,
  state: object,
): Promise<FollowerStep<object>> {
  const { limit, types } = selection;
  const rows = await selectionStatement(selection).query<R & Header>(tx, schema, {
    ...readParameters(position, { limit, types }),
    ...selection.parameters,
  });
  const [header] = rows;
  if (header === undefined) throw new Error('a read of the event log returned no snapshot');
  const found = rows.filter((row) => row.found);
  if (found.length > 0) await handle(tx, found);
  const { until, moved, ahead, read, last_xid, last_seq } = header;
  const complete = read < limit || last_xid === null || last_seq === null;
  return {
    position: nextPosition(position, until, complete ? undefined : { xid: last_xid, seq: last_seq }),
    state,
    handled: read,
    complete,
    moved: moved || read > 0,
    ahead,
  };
}

async function setAsideNext<R extends object>(
  db: Database,
  schema: Schema,
  selection: Selection,
  handlers: SelectionHandlers<R>,
): Promise<FollowResult> {
  const { name, types } = selection;
  const setAside: SetAside[] = [];
  const followed = await runFollowerStep(db, schema, name, {}, async (tx, position, state) => {
    const read = await readNewEvents(tx, schema, position, { limit: 1, types });
    const [event] = read.events;
    const page = read.position.page;
    if (event === undefined || page === undefined) return { ...read, state, handled: 0 };
    // Reads up to the snapshot of this read, so that both reads see the same events, whatever commits in between.
    const { xid = '0', seq = '0' } = position.page ?? {};
    const pinned = { seen: position.seen, page: { until: page.until, xid, seq } };
    let failure: unknown;
    const step = await attempt(
      tx,
      () => selectStep(tx, schema, { ...selection, limit: 1 }, handlers, pinned, state),
      (error) => {
        failure = error;
      },
    );
    if (step !== undefined) return step;
    const why = await recordSetAside(tx, schema, name, event, failure);
    await handlers.onSetAside?.(tx, event, why);
    setAside.push(why);
    return { ...read, state, handled: 1, complete: false };
  });
  return { ...followed, setAside };
}

function selectionStatement({ ctes, from }: Selection): Statement {
  return statement(`
  with log as materialized (${selectNewEvents}
  ),
  ${ctes},
  header as (
    select until, moved, ahead
      from log
     where until is not null
  ),
  ending as (
    select count(*)::int as read,
           (array_agg(xid order by xid desc, seq desc))[1]::text as last_xid,
           (array_agg(seq order by xid desc, seq desc))[1]::text as last_seq
      from log
     where until is null
  )
  select h.until, h.moved, h.ahead, e.*, f.*
    from header h
   cross join ending e
    left join (select true as found, * from ${from}) f on true`);
}
