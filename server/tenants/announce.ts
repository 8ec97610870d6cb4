// Tells every daemon that the tenants changed, so that none has to ask every second. A hint: their
// slow refresh finds it too.
import type { Queryable } from '../database/database.ts';
import { keysChanged, tenantsChanged, wakeChannel } from '../database/notifications.ts';

/** Tells every daemon that a key no longer opens anything. A hint: what they remember of keys lasts seconds. */
export async function announceKeys(db: Queryable): Promise<void> {
  await db.query('select pg_notify($1, $2)', [wakeChannel, `-:${keysChanged}`]).catch(() => {});
}

export async function announceTenants(db: Queryable): Promise<void> {
  await db.query('select pg_notify($1, $2)', [wakeChannel, `-:${tenantsChanged}`]).catch(() => {});
}
