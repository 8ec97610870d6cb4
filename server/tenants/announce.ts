// Tells every daemon that the tenants changed, so that none has to ask every second. A hint: their
// slow refresh finds it too.
import type { Queryable } from '../database/database.ts';
import { tenantsChanged, wakeChannel } from '../database/notifications.ts';

export async function announceTenants(db: Queryable): Promise<void> {
  await db.query('select pg_notify($1, $2)', [wakeChannel, `-:${tenantsChanged}`]).catch(() => {});
}
