// The filters of job lists, in a query and in the body of a bulk operation.
import { z } from 'zod';
import { statusesOfHold } from '../../jobs/model/hold.ts';
import { holdKinds, priorities } from '../../jobs/model/job.ts';
import { type Status, statuses } from '../../jobs/model/states.ts';
import type { JobFilter } from '../../jobs/read/filter.ts';
import { nameField, targetIdField, timeField } from '../../kernel/fields.ts';
import { booleanQuery, pageQuery } from '../paging.ts';

const statusList = z
  .string()
  .max(500)
  .transform((text) => text.split(','))
  .pipe(z.array(z.enum(statuses)).min(1))
  .meta({ type: 'string', description: 'One status, or several with commas between them.' });

function holdKindField() {
  return z
    .enum(holdKinds)
    .optional()
    .describe('Only jobs with a hold of this kind: `drain` has what a shutdown paused.');
}

export const listQuery = z.strictObject({
  ...pageQuery(),
  status: z
    .union([statusList, z.array(statusList).transform((lists) => lists.flat())], {
      error: `must be one or more of ${statuses.join(', ')}, with commas between them`,
    })
    .optional(),
  held: booleanQuery().optional().describe('true: only jobs that wait for a person (PAUSED, ERROR).'),
  hold_kind: holdKindField(),
  type: nameField().optional(),
  queue: nameField().optional(),
  target_id: targetIdField().optional(),
  priority: z.enum(priorities).optional(),
  created_after: timeField().optional(),
  created_before: timeField().optional(),
  include: z.literal('payload,result').optional().describe('Adds payloads and results; at most 50 jobs per page then.'),
});

export function listFilter(
  query: Omit<z.output<typeof listQuery>, 'target_id'> & { target_id?: string | undefined },
): JobFilter {
  return {
    statuses: withHeld(query.status ?? (query.hold_kind && statusesOfHold[query.hold_kind]), query.held),
    holdKind: query.hold_kind,
    type: query.type,
    queue: query.queue,
    targetId: query.target_id,
    priority: query.priority,
    createdAfter: query.created_after,
    createdBefore: query.created_before,
  };
}

export const operationFilter = z
  .strictObject({
    status: z.array(z.enum(statuses)).min(1).max(statuses.length).optional(),
    hold_kind: holdKindField(),
    type: nameField().optional(),
    queue: nameField().optional(),
    target_id: targetIdField().optional(),
    priority: z.enum(priorities).optional(),
    created_after: timeField().optional(),
    created_before: timeField().optional(),
  })
  .meta({ id: 'JobFilter' });

const heldStatuses: readonly Status[] = ['PAUSED', 'ERROR'];

function withHeld(given: readonly Status[] | undefined, held: boolean | undefined): readonly Status[] | undefined {
  if (held === undefined) return given;
  return (given ?? statuses).filter((status) => heldStatuses.includes(status) === held);
}
