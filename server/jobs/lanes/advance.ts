// How lanes go on within the statement that ends their heads: the next in line becomes the head, and
// starts at once if the caller has room for it. Promoting it and claiming it later would write it twice.
import type { Schema } from '../../database/identifiers.ts';
import { jsonBytes } from '../../database/json-bytes.ts';
import type { EventSelect } from '../../events/log/record.ts';
import { type NamedClaim, startOf, take, withinClaim } from '../claim/claim.ts';
import { claimedColumns, selectClaimed } from '../claim/claimed-job.ts';
import type { LeasePlaces } from '../claim/lease.ts';
import { guard } from '../model/states.ts';
import { becomesHead, firstByPriority } from './lane.ts';

export interface LaneAdvance {
  /** CTEs over `settled`, each with its comma. */
  ctes: string;
  /** More rows for the event log. */
  events: EventSelect[];
  /** Whether a lane has another head that did not start. */
  promoted: string;
  /** The jobs that start, and what stands in their columns in the row that is told of all. */
  started: string;
  blank: string;
  values: unknown[];
}

/** For jobs without targets. */
export const noLanes: LaneAdvance = {
  ctes: '',
  events: [],
  promoted: 'false',
  started: '',
  blank: '',
  values: [],
};

// Behind the six values of the outcomes.
const given: LeasePlaces = { lease: '$7::uuid', owner: '$8::text', seconds: '$9' };
const [types, limit] = ['$10::text[]', '$11'];

/**
 * The targets must have been locked by a statement before this one. The heads that leave are seen in
 * `settled` alone: what this statement writes it cannot read.
 */
export function advanceLanes(schema: Schema, request: NamedClaim | undefined): LaneAdvance {
  const first = (where: string) => `(
           select j.id, j.status, j.type, j.remote, j.priority, j.created_at, ${jsonBytes('j.payload')} as bytes from ${schema}.jobs j
            where j.target_id = s.target_id and j.lane_rank is not null ${where} order by j.lane_rank, j.lane_seq limit 1)`;
  // Mostly the next is close behind: an index page of a long line need not be read to its end for it.
  const close = `and (j.lane_rank, j.lane_seq) <= (s.priority + ${firstByPriority}, s.lane_seq + 4)`;
  const next = `next as (
       select n.* from settled s cross join lateral (${first(close)} union all ${first('')} limit 1) n
        where not s.lane_head
          and not exists (select 1 from ${schema}.targets t where t.id = s.target_id and t.paused_at is not null)),`;
  const promote = (which: string) => `promoted as (
       update ${schema}.jobs set ${becomesHead} where id = any(array(${which})) returning id),`;
  const promoted = 'exists (select 1 from promoted)';
  if (request === undefined) {
    return { ...noLanes, ctes: `${next} ${promote('select id from next')}`, promoted };
  }
  return {
    ctes: `${next}
     startable as (
       select id, priority, created_at, bytes from next n
        where ${guard('start', 'n')} and not n.remote and (${types} is null or n.type = any(${types}))
        order by n.priority, n.created_at, n.id limit ${limit}),
     picked as (${withinClaim('startable')}),
     ${take(schema, 'start', 'local', given, `${becomesHead},`)},
     ${promote('select id from next except select id from picked')}`,
    events: [startOf('start', given)],
    promoted,
    started: `${selectClaimed(true, 'null::jsonb as told')} union all`,
    blank: 'null, '.repeat(claimedColumns),
    values: [request.leaseId, request.owner, request.leaseSeconds, request.types ?? null, request.limit],
  };
}
