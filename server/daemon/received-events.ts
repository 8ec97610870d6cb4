// What follows from an event from outside once it is committed: it is delivered here, or by the daemons that run.
import { notifyReceived } from '../jobs/received/receive-event.ts';
import type { PerTenantTasks } from '../maintenance/create-per-tenant-tasks.ts';
import type { Tenant } from '../tenants/tenant.ts';
import type { DaemonContext } from './daemon-context.ts';

/** An instance that was not started runs no tasks. */
export function onEventReceived(
  { db, signals, lifecycle, logger }: DaemonContext,
  tasks: Pick<PerTenantTasks, 'received'>,
  tenant: Tenant,
): void {
  signals.eventsWritten(tenant);
  if (lifecycle.state === 'running') {
    tasks.received.runNow(tenant.slug);
    return;
  }
  void notifyReceived(db, tenant).catch((error: unknown) =>
    logger.debug({ err: error, tenant: tenant.slug }, 'received event was not announced; a poll finds it'),
  );
}
