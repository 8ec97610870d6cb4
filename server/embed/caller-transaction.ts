// Runs our statements in the transaction of a caller. A `pg` client, and the transaction objects of drizzle, Kysely and
// postgres.js, are distinguished by their methods, so none of these packages is needed here.
import type { Queryable } from '../database/database.ts';
import { forCoordinator } from '../database/nodes/placements.ts';
import { ConfigError } from '../kernel/config.ts';
import type {
  CallerTransaction,
  DrizzleTransaction,
  KyselyTransaction,
  PgClient,
  PostgresJsTransaction,
  Rows,
} from './api.ts';

type Send = (text: string, values: unknown[]) => PromiseLike<unknown>;

/** `sharded`: the transaction is one of a cluster's coordinator. */
export function queryableOf(tx: CallerTransaction, { sharded }: { sharded: boolean }): Queryable {
  const send = senderOf(tx);
  return {
    async query<R extends object>(text: string, values: unknown[] = []): Promise<R[]> {
      const answer = (await send(sharded ? forCoordinator(text) : text, values)) as Rows;
      return ('rows' in answer ? answer.rows : answer) as R[];
    },
  };
}

function senderOf(tx: CallerTransaction): Send {
  const given = tx as Partial<PgClient & KyselyTransaction & PostgresJsTransaction & DrizzleTransaction>;
  const { executeQuery, unsafe, query } = given;
  const session = given._?.session as DrizzleSession | undefined;
  if (typeof session?.prepareQuery === 'function') return sendByDrizzle(session);
  if (typeof executeQuery === 'function') return sendByKysely(given as KyselyTransaction);
  if (typeof unsafe === 'function') return (text, values) => unsafe.call(tx, text, values);
  if (typeof query !== 'function') throw new ConfigError('tx has no query(text, values)');
  refuseOpenClient(tx as object);
  return (text, values) => query.call(tx, text, values);
}

interface DrizzleSession {
  prepareQuery(query: object, fields: undefined, name: undefined, arrays: boolean): { execute(): Promise<unknown> };
}

function sendByDrizzle(session: DrizzleSession): Send {
  return (sql, params) => session.prepareQuery({ sql, params }, undefined, undefined, false).execute();
}

/** A query as `CompiledQuery.raw` makes it. */
function sendByKysely(tx: KyselyTransaction): Send {
  return (sql, parameters) =>
    tx.executeQuery({
      sql,
      parameters,
      query: { kind: 'RawNode', sqlFragments: [sql], parameters: [] },
      queryId: { queryId: 'leasehold' },
    });
}

/** On a pool, or on a client without BEGIN, every statement would be its own transaction. */
function refuseOpenClient(tx: object): void {
  if ('totalCount' in tx) throw new ConfigError('tx is a pool; pass the client on which BEGIN was sent');
  const { getTransactionStatus } = tx as { getTransactionStatus?: () => string | null };
  if (getTransactionStatus?.call(tx) === 'I') throw new ConfigError('tx is a client without an open transaction');
}
