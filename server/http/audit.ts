// One line in the log for every change of tenants and keys: who, what, from which request.
import type { RouteContext } from './route.ts';

export function audit(
  context: Pick<RouteContext, 'actor' | 'logger'>,
  action: string,
  fields: Record<string, unknown>,
): void {
  context.logger.info({ audit: action, actor: context.actor, ...fields }, 'audit');
}
