// Numbers of events and log lines after a restore. In a cluster the nodes number them, and a dump of the cluster has the
// sequences of the coordinator. On one Postgres these would give out numbers below those of the restored rows, so the log
// of a job would not be in order.
import type { Logger } from '../../kernel/logger.ts';
import type { Database, Queryable } from '../database.ts';
import { quoteSchema, type Schema } from '../identifiers.ts';
import { fromEpochs, isCopied } from '../log-epoch.ts';
import { runQuery } from '../sql.ts';
import { sqlState } from '../sql-errors.ts';

// Planning time grows with the number of tables in a statement.
const schemasAtOnce = 50;
/** A large log is read once as a whole. */
const timeouts = { timeoutMs: 3_600_000, lockTimeoutMs: 0 };

/** The index that ends with one of the newest rows. */
const numbered = [
  { table: 'events', newest: 'xid desc, seq desc' },
  { table: 'job_logs', newest: 'job_id desc, seq desc' },
];

/**
 * Must run before the first event is written there. Returns the schemas whose sequences were behind. A tenant that fails is
 * reported and stops no other.
 */
export async function continueNumbers(db: Database, schemaNames: readonly string[], logger: Logger): Promise<Schema[]> {
  const continued: Schema[] = [];
  // The nodes of a cluster number by the epoch of the log.
  if (db.sharded) return continued;
  for (let i = 0; i < schemaNames.length; i += schemasAtOnce) {
    for (const schema of await restoredOf(db, schemaNames.slice(i, i + schemasAtOnce).map(quoteSchema))) {
      try {
        if (!(await db.transaction((tx) => continueIn(tx, schema), timeouts))) continue;
        continued.push(schema);
        logger.info({ schema }, 'numbers of events continue after those of the restored dump');
      } catch (error) {
        logger.error({ err: error, schema }, 'numbers of events may not continue after those of the restored dump');
      }
    }
  }
  return continued;
}

/** Tenants in whose logs no epoch was registered since a restore; all of them if one cannot be read. */
async function restoredOf(db: Database, schemas: readonly Schema[]): Promise<readonly Schema[]> {
  const selects = schemas.map((schema, n) => `(select ${n} as position, ${isCopied} as copied ${fromEpochs(schema)})`);
  try {
    const rows = await db.query<{ position: number; copied: boolean }>(selects.join(' union all '));
    return rows.filter(({ copied }) => copied).map(({ position }) => schemas[position] as Schema);
  } catch (error) {
    if (sqlState(error) === undefined) throw error;
    return schemas;
  }
}

async function continueIn(tx: Queryable, schema: Schema): Promise<boolean> {
  // Another daemon that starts too may already have given out a number.
  await runQuery(tx, 'select pg_advisory_xact_lock(hashtextextended(:lockName, 0))', {
    lockName: `leasehold:numbers:${schema}`,
  });
  let isBehind = false;
  for (const { table, newest } of numbered) {
    const sequence = `${schema}.${table}_seq_seq`;
    const [row] = await tx.query<{ behind: boolean | null }>(
      `select s.last_value < (select seq from ${schema}.${table} order by ${newest} limit 1) as behind from ${sequence} as s`,
    );
    if (!row?.behind) continue;
    isBehind = true;
    await tx.query(`select setval('${sequence}', max(seq)) from ${schema}.${table}`);
  }
  return isBehind;
}
