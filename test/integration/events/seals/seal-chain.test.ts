// A tenant of the version before removals were recorded: its schema is brought up to date, and its chain continues.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { quoteSchema } from '../../../../server/database/identifiers.ts';
import { migrateTenant } from '../../../../server/database/migrations/migrate.ts';
import { hashBlock1 } from '../../../../server/events/seals/seal-chain.ts';
import { packageRoot } from '../../../../server/kernel/environment.ts';
import { verifyTenant } from '../../../../server/verify/verify-tenant.ts';
import { writeEvent } from '../../../support/events.ts';
import { useDatabase } from '../../../support/postgres/database.ts';
import { writeMigrations } from '../../../support/postgres/migration-folder.ts';
import { sealAll } from '../../../support/seals.ts';

const context = useDatabase();

test('seals that an earlier version pruned are adopted once, by the first seal of this version', async () => {
  const { db } = context;
  const folder = join(packageRoot(), 'migrations', 'tenant');
  const files = readdirSync(folder)
    .filter((name) => name.endsWith('.sql'))
    .sort();
  const before = files.slice(
    0,
    files.findIndex((name) => name.endsWith('_sealed_pruning.sql')),
  );
  const directory = await writeMigrations(
    Object.fromEntries(before.map((name) => [name.replace('.sql', ''), readFileSync(join(folder, name), 'utf8')])),
  );
  await migrateTenant(db, 'tenant_before', { directory });
  const schema = quoteSchema('tenant_before');
  let previousHash = Buffer.alloc(0);
  for (const number of ['1', '2']) {
    const hash = hashBlock1({ number, snapshot: '1:1:', keys: [], hashes: Buffer.alloc(0), previousHash });
    await db.query(
      `insert into ${schema}.event_seals (number, snapshot, event_keys, event_hashes, previous_hash, hash, pruned_at)
       values ($1::bigint, '1:1:', '{}', '', $2, $3, case when $1::bigint = 1 then now() end)`,
      [number, previousHash, hash],
    );
    previousHash = Buffer.from(hash);
  }
  await db.query(
    `insert into ${schema}.followers (name, snapshot, state)
     values ('seals', pg_current_snapshot()::text, jsonb_build_object('number', '2', 'hash', $1::text))`,
    [previousHash.toString('hex')],
  );
  await migrateTenant(db, 'tenant_before');
  expect(await verifyTenant(db, schema)).toMatchObject({ violations: [], seals: { prunedSeals: 1, formerSeals: 2 } });
  await writeEvent(db, schema);
  await sealAll({ db, schema });
  const found = await verifyTenant(db, schema);
  expect(found).toMatchObject({
    violations: [],
    seals: { seals: 2, lastPrune: { seal: '3', olderThanSeconds: null } },
  });
  await db.query(`update ${schema}.event_seals set pruned_at = now(), pruned_by = 0 where number = 2`);
  expect((await verifyTenant(db, schema)).violations).toMatchObject([{ kind: 'prune_unrecorded', seal: '2' }]);
});
