// The signals after a commit, for tasks that know the tenant by its slug.
import type { DaemonContext } from './daemon-context.ts';

export function announceWork({ registry, signals }: DaemonContext, slug: string): void {
  const tenant = registry.bySlug(slug);
  if (tenant === undefined) return;
  signals.eventsWritten(tenant);
  signals.workAvailable(tenant);
}
