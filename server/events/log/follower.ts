// A durable follower: what it does and how far it has read commit together, so every event has its
// effect exactly once, whichever daemon does it. Webhooks, seals and statistics are followers.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { problem } from '../../kernel/errors.ts';
import type { Event } from './event.ts';
import { beginning, formatPosition, type Position, parsePosition } from './position.ts';
import { readNewEvents } from './read-new-events.ts';
import type { SetAside } from './set-aside.ts';

export interface FollowOptions {
  /** Where a follower starts that has never run. */
  startAt?: 'beginning' | 'now';
  /** Most events for one call of `handle`. */
  limit?: number;
  types?: readonly string[];
}

export interface FollowResult {
  handled: number;
  /** False: call again at once. */
  complete: boolean;
  /** Another daemon is at it. */
  busy: boolean;
  /** Events that could not be processed and were passed by. */
  setAside?: SetAside[];
}

/** Called with at least one event, inside the transaction that also moves the follower on. */
export type Handle<S extends object> = (tx: Queryable, events: Event[], state: S) => Promise<S>;

const defaultLimit = 1000;

export async function followOnce<S extends object>(
  db: Database,
  schema: Schema,
  name: string,
  handle: Handle<S>,
  options: FollowOptions = {},
): Promise<FollowResult> {
  const { limit = defaultLimit, types } = options;
  return runFollowerStep<S>(db, schema, name, options, async (tx, position, state) => {
    const read = await readNewEvents(tx, schema, position, { limit, types });
    const next = read.events.length === 0 ? state : await handle(tx, read.events, state);
    return { ...read, handled: read.events.length, state: next };
  });
}

/** What one step of a follower did: how far it read, and what it wants to remember. */
export interface FollowerStep<S extends object> {
  position: Position;
  state: S;
  handled: number;
  complete: boolean;
  moved: boolean;
  ahead: boolean;
}

/** The same for those who read the log in a statement of their own (`readStatement`). */
export async function runFollowerStep<S extends object>(
  db: Database,
  schema: Schema,
  name: string,
  options: Pick<FollowOptions, 'startAt'>,
  step: (tx: Queryable, position: Position, state: S) => Promise<FollowerStep<S>>,
): Promise<FollowResult> {
  return db.transaction(async (tx) => {
    const follower = await lockFollower(tx, schema, name);
    if (follower === 'unknown') {
      await createFollower(tx, schema, name, options.startAt ?? 'beginning');
      return { handled: 0, complete: false, busy: false };
    }
    if (follower === 'busy') return { handled: 0, complete: true, busy: true };
    const { position, state, handled, complete, moved, ahead } = await step(tx, follower.position, follower.state as S);
    // A quiet tenant costs a read, never a write.
    const stays = !follower.position.page || formatPosition(position) === follower.stored;
    if (!moved && !ahead && stays) return { handled: 0, complete, busy: false };
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
 * The advisory lock keeps daemons from doing the same work twice, without writing anything; that only
 * one of them succeeds is settled by `advance`.
 */
async function lockFollower(tx: Queryable, schema: Schema, name: string): Promise<LockedFollower | 'busy' | 'unknown'> {
  const [row] = await tx.query<{ snapshot: string; state: object; mine: boolean }>(
    `select snapshot, state, pg_try_advisory_xact_lock(hashtextextended($2, 0)) as mine
       from ${schema}.followers where name = $1`,
    [name, `follower ${schema} ${name}`],
  );
  if (!row) return 'unknown';
  if (!row.mine) return 'busy';
  const position = parsePosition(row.snapshot);
  if (!position) throw new Error(`follower ${name} of ${schema} has no position but ${JSON.stringify(row.snapshot)}`);
  return { stored: row.snapshot, position, state: row.state };
}

async function createFollower(
  tx: Queryable,
  schema: Schema,
  name: string,
  startAt: 'beginning' | 'now',
): Promise<void> {
  await tx.query(
    `insert into ${schema}.followers (name, snapshot)
     select $1, case when $2 then $3 else pg_current_snapshot()::text end on conflict (name) do nothing`,
    [name, startAt === 'beginning', formatPosition(beginning)],
  );
}

/** Zero rows: another daemon moved it on meanwhile, and all that `handle` did here is rolled back. */
async function advance(
  tx: Queryable,
  schema: Schema,
  name: string,
  stored: string,
  position: Position,
  state: object,
): Promise<void> {
  const rows = await tx.query(
    `update ${schema}.followers set snapshot = $3, state = $4::jsonb, updated_at = now()
      where name = $1 and snapshot = $2 returning name`,
    [name, stored, formatPosition(position), JSON.stringify(state)],
  );
  if (rows.length === 0) throw problem('CONFLICT', `Another daemon moved the follower ${name} on.`);
}
