// Events that a follower cannot process. They are found with smaller and smaller steps, recorded, and skipped in the
// transaction that advances the follower, so that they never stop the events after them.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { isDataError, sqlState } from '../../database/sql-errors.ts';
import { errorMessage } from '../../kernel/errors.ts';
import { type Event, eventKey } from './event.ts';

export interface SetAside {
  follower: string;
  /** `xid:seq`. */
  event: string;
  code: string;
  error: string;
}

/** For the log and the metrics. Called after the commit. */
export type ReportSetAside = (tenant: { slug: string }, events: readonly SetAside[] | undefined) => void;

const maxErrorLength = 500;

/**
 * Calls `run` once unless an event makes it fail. In that case `run` handles the events before it in ever smaller
 * steps, and `setAsideNext` gets the next event alone. Events that commit meanwhile may come first, so `setAsideNext`
 * must try the event first.
 */
export async function isolateFailingEvent<R extends { handled: number; complete: boolean; busy: boolean }>(
  limit: number,
  run: (limit: number) => Promise<R>,
  setAsideNext: () => Promise<R>,
): Promise<R> {
  const all = await orDataError(() => run(limit));
  if (all !== 'dataError') return all;
  let handled = 0;
  // The failing event is among this many.
  let within = limit;
  while (within > 1) {
    const half = Math.ceil(within / 2);
    const part = await orDataError(() => run(half));
    if (part === 'dataError') {
      within = half;
      continue;
    }
    handled += part.handled;
    if (part.busy || part.complete) return { ...part, handled };
    within -= half;
  }
  const last = await setAsideNext();
  return { ...last, handled: handled + last.handled };
}

async function orDataError<R>(step: () => Promise<R>): Promise<R | 'dataError'> {
  try {
    return await step();
  } catch (error) {
    if (isDataError(error)) return 'dataError';
    throw error;
  }
}

const insertStatement = statement(`
  insert into ${tenant}.set_aside_events (follower, event_xid, event_seq, code, error)
  values (:follower, :xid::text::xid8, :seq, :code, :error)
  on conflict do nothing`);

export async function recordSetAside(
  tx: Queryable,
  schema: Schema,
  follower: string,
  event: Pick<Event, 'xid' | 'seq'>,
  error: unknown,
): Promise<SetAside> {
  const reason = { code: sqlState(error) ?? '', error: errorMessage(error).slice(0, maxErrorLength).toWellFormed() };
  await insertStatement.query(tx, schema, { follower, xid: event.xid, seq: event.seq, ...reason });
  return { follower, event: eventKey(event), ...reason };
}

/** Counts the events that each follower has skipped and retention has not removed. */
export async function countSetAside(tx: Queryable, schema: Schema): Promise<Record<string, number>> {
  const rows = await tx.query<{ follower: string; count: number }>(
    `select follower, count(*)::int as count
       from ${schema}.set_aside_events
      group by follower
      order by follower`,
  );
  return Object.fromEntries(rows.map((row) => [row.follower, row.count]));
}
