// Checks what must never break (docs/guarantees.md) from the tables and from the event log alone, at
// any moment: also in the middle of things, because every change is one transaction.
import { expect } from 'vitest';
import { verifyTenant } from '../../../server/verify/verify-tenant.ts';
import type { TenantContext } from '../postgres/database.ts';
import { brokenHistories, brokenRows, type EventRow, historyQuery } from './histories.ts';

type Where = Pick<TenantContext, 'db' | 'schema'>;

/** Fails with every broken invariant, named. */
export async function checkInvariants({ db, schema }: Where): Promise<void> {
  const { violations } = await verifyTenant(db, schema);
  const broken = [
    ...violations.map(
      (violation) => `${violation.kind} ${violation.jobId ?? violation.targetId ?? ''}: ${violation.detail}`,
    ),
    ...(await brokenRows(db, schema)),
    ...brokenHistories(await db.query<EventRow>(historyQuery(schema))).map(({ text }) => text),
  ];
  expect(broken).toEqual([]);
}
