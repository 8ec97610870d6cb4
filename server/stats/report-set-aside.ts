// Events that a follower set aside, in the log and in the metrics.
import type { ReportSetAside } from '../events/log/set-aside.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Metrics } from './metrics.ts';

export function reportSetAside(metrics: Pick<Metrics, 'setAside'>, logger: Logger): ReportSetAside {
  return (tenant, events = []) => {
    for (const event of events) {
      metrics.setAside.add(tenant.slug, event.follower);
      logger.error({ tenant: tenant.slug, ...event }, 'an event could not be processed and was set aside');
    }
  };
}
