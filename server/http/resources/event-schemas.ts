// The shapes of events in the API.
import { z } from 'zod';

export const eventSchema = z
  .strictObject({
    id: z.string().describe('Its number in the log of the tenant.'),
    at: z.string(),
    type: z.string().describe('What happened, e.g. `job.started`.'),
    job_id: z.string().nullable(),
    target_id: z.string().nullable(),
    from: z.string().nullable().describe('Status before.'),
    to: z.string().nullable().describe('Status after.'),
    attempt: z.int().nullable(),
    lease_id: z.string().nullable(),
    actor: z.string().describe('Who: `key:<id>`, `user:<name>`, `worker:<id>`, `sweeper:<daemon>`, `schedule:<name>`.'),
    data: z.record(z.string(), z.unknown()).nullable(),
  })
  .meta({ id: 'Event' });

export const eventPageSchema = z.strictObject({
  events: z.array(eventSchema),
  next_cursor: z.string().nullable().describe('Null at the end. A page may be short and still have a next one.'),
});

export const jobIdParam = z.uuid().transform((id) => id.toLowerCase());
export const targetIdParam = z.string().min(1).max(200);
