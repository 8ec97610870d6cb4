// Events that a follower cannot process. Such an event is recorded and passed by, in the transaction that
// moves the follower on: it never stops those behind it.

import type { Queryable } from '../../database/database.ts';
import { sqlState } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { errorMessage } from '../../kernel/errors.ts';
import { type Event, eventKey } from './event.ts';

export interface SetAside {
  follower: string;
  /** `xid:seq`. */
  event: string;
  code: string;
  error: string;
}

/** For the log and the metrics; called after the commit. */
export type ReportSetAside = (tenant: { slug: string }, events: readonly SetAside[] | undefined) => void;

const maxErrorLength = 500;

export async function recordSetAside(
  tx: Queryable,
  schema: Schema,
  follower: string,
  event: Pick<Event, 'xid' | 'seq'>,
  error: unknown,
): Promise<SetAside> {
  const reason = { code: sqlState(error) ?? '', error: errorMessage(error).slice(0, maxErrorLength).toWellFormed() };
  await tx.query(
    `insert into ${schema}.set_aside_events (follower, event_xid, event_seq, code, error)
     values ($1, $2::text::xid8, $3, $4, $5) on conflict do nothing`,
    [follower, event.xid, event.seq, reason.code, reason.error],
  );
  return { follower, event: eventKey(event), ...reason };
}

/** How many events each follower has passed by, of those that are still remembered. */
export async function countSetAside(tx: Queryable, schema: Schema): Promise<Record<string, number>> {
  const rows = await tx.query<{ follower: string; count: number }>(
    `select follower, count(*)::int as count from ${schema}.set_aside_events group by follower order by follower`,
  );
  return Object.fromEntries(rows.map((row) => [row.follower, row.count]));
}
