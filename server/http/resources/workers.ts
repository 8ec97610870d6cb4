// /api/admin/workers: the daemons of this database, alive, draining or lost.
import { z } from 'zod';
import { listDaemons } from '../../daemons/live-daemons.ts';
import type { Database } from '../../database/database.ts';
import { RouteGroup } from '../route.ts';

const workerSchema = z
  .strictObject({
    id: z.string(),
    incarnation: z.string().describe('A new one for each process.'),
    host: z.string(),
    pid: z.int(),
    version: z.string(),
    started_at: z.string(),
    last_beat_at: z.string(),
    seconds_since_beat: z.number(),
    state: z.enum(['alive', 'draining', 'lost']),
    running: z.int().describe('Jobs it ran at its last beat.'),
    job_types: z.array(z.string()),
  })
  .meta({ id: 'Worker' });

export function adminWorkerRoutes({ db }: { db: Database }): RouteGroup {
  const group = new RouteGroup('Administration');
  group.route({
    method: 'get',
    path: '/api/admin/workers',
    summary: 'List daemons: alive, draining, or lost within the last day',
    access: 'operator',
    answers: { 200: z.strictObject({ workers: z.array(workerSchema) }) },
    handle: async () => ({ workers: await listDaemons(db) }),
  });
  return group;
}
