// A schedule that fires every few seconds during a run. Every one of its times has one job, whatever happens to daemons.
import { expect } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import type { World } from '../world.ts';
import { operate } from './operations.ts';

export const tickSeconds = 5;
const name = 'ticks';

export async function startTicks(world: World): Promise<void> {
  const { outcome } = await schedule(world, 'make', '/api/schedules', {
    name,
    cron: `*/${tickSeconds} * * * * *`,
    missed: 'all',
    job: { type: 'work', target_id: 'ticks', max_attempts: 5 },
  });
  expect(outcome).toBe('ok');
}

/** After the faults, so that all work can end. */
export async function stopTicks(world: World): Promise<void> {
  const find = `select id from ${world.first.schema}.schedules where name = '${name}'`;
  const [found] = await world.context.db.query<{ id: string }>(find);
  if (found === undefined) return;
  await eventually(async () => {
    expect((await schedule(world, 'change', `/api/schedules/${found.id}/pause`)).outcome).toBe('ok');
  });
}

function schedule(world: World, operation: 'make' | 'change', path: string, body?: object) {
  const { tenant, apiKey } = world.first;
  return operate(world.log, {
    name: operation,
    kind: 'schedule',
    resource: name,
    daemon: world.anyDaemon(),
    tenant: tenant.slug,
    apiKey,
    method: 'POST',
    path,
    ...(body !== undefined && { body }),
  });
}
