// Writers of events that commit in an order of their own, as real ones do.
import type { Queryable } from '../../server/database/database.ts';
import type { Schema } from '../../server/database/identifiers.ts';
import { recordEvent } from '../../server/events/log/record.ts';
import { staysOpen, type TenantContext } from './postgres/database.ts';

type Where = Pick<TenantContext, 'db' | 'schema'>;

export async function writeEvent(
  tx: Queryable,
  schema: Schema,
  given: { type?: string; targetId?: string; n?: number } = {},
) {
  await recordEvent(tx, schema, {
    type: given.type ?? 'test.happened',
    actor: 'test',
    ...(given.targetId !== undefined && { targetId: given.targetId }),
    data: { n: given.n ?? 0 },
  });
}

export interface OpenTransaction {
  tx: Queryable;
  commit(): Promise<void>;
  rollback(): Promise<void>;
}

/** A transaction on a separate connection that stays open until the test ends it. */
export async function openTransaction({ db }: Where): Promise<OpenTransaction> {
  let end: (how: 'commit' | 'rollback') => void = () => {};
  const ended = new Promise<'commit' | 'rollback'>((resolve) => {
    end = resolve;
  });
  let opened: (tx: Queryable) => void = () => {};
  const ready = new Promise<Queryable>((resolve) => {
    opened = resolve;
  });
  const done = db
    .transaction(async (tx) => {
      opened(tx);
      if ((await ended) === 'rollback') throw new Error('rolled back on purpose');
    }, staysOpen)
    .catch((error: Error) => {
      if (error.message !== 'rolled back on purpose') throw error;
    });
  const finish = async (how: 'commit' | 'rollback') => {
    end(how);
    await done;
  };
  return { tx: await ready, commit: () => finish('commit'), rollback: () => finish('rollback') };
}

/**
 * `writers` connections write `each` transactions: some short, some long, some rolled back, each with
 * events of a few targets, which they lock first as every writer of a lane does.
 * Returns the `n` of every event that was committed.
 */
export async function writeOutOfOrder(
  where: Where,
  options: { writers: number; each: number; targets: number },
): Promise<number[]> {
  const { db, schema } = where;
  const { writers, each, targets } = options;
  const names = Array.from({ length: targets }, (_, i) => `t${i}`);
  await db.query(`insert into ${schema}.targets (id) select unnest($1::text[]) on conflict do nothing`, [names]);
  const committed: number[] = [];
  await Promise.all(
    Array.from({ length: writers }, async (_, writer) => {
      for (let i = 0; i < each; i++) {
        const own: number[] = [];
        const chosen = names.filter(() => Math.random() < 2 / targets).sort();
        const write = db.transaction(async (tx) => {
          for (const targetId of chosen) {
            await tx.query(`select 1 from ${schema}.targets where id = $1 for no key update`, [targetId]);
            const [row] = await tx.query<{ lane_seq: string }>(
              `update ${schema}.targets set lane_seq = lane_seq + 1 where id = $1 returning lane_seq`,
              [targetId],
            );
            const n = Number(row?.lane_seq) * 1000 + names.indexOf(targetId);
            own.push(n);
            await writeEvent(tx, schema, { targetId, n });
            if (Math.random() < 0.3) await tx.query('select pg_sleep($1)', [Math.random() * 0.02]);
          }
          if ((writer + i) % 7 === 0) throw new Error('rolled back on purpose');
        }, staysOpen);
        await write.then(
          () => committed.push(...own),
          (error: Error) => {
            if (error.message !== 'rolled back on purpose') throw error;
          },
        );
      }
    }),
  );
  return committed;
}
