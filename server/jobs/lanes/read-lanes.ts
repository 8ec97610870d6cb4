// Reads lanes: the head, the hold and the jobs in line, of one target or a page of targets. Every read is bounded: a
// page costs as much as it shows, however many jobs the lanes have.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { columnList, columnsOf } from '../../database/reads/drizzle.ts';
import { statement, statementVariants, tenant } from '../../database/sql.ts';
import { jobs } from '../../database/tables/tenant.ts';
import { hasNoLease } from '../claim/lease.ts';
import type { Job } from '../model/job.ts';
import { ownedStatuses, statusIn } from '../model/states.ts';
import type { NamedWaiting } from '../model/waiting.ts';
import { readWaits } from '../read/read-waits.ts';
import { type Target, targetColumns } from './target.ts';

const laneFields = [
  'id',
  'targetId',
  'type',
  'status',
  'onError',
  'priority',
  'laneRank',
  'heldSince',
  'runAt',
  'createdAt',
  'leaseOwner',
  'error',
  'hold',
  'waiting',
] as const satisfies readonly (keyof Job)[];

export interface LaneJob extends Omit<Pick<Job, (typeof laneFields)[number]>, 'targetId' | 'priority' | 'waiting'> {
  targetId: string;
  waiting: NamedWaiting | null;
  /** The rank of the priority. */
  priority: number;
  /** The head is owned, but its lease is not active. */
  isUnleased?: boolean;
}

/** The columns of a job in a lane, over `j`. */
export const laneColumns = jobList(laneFields);

function jobList(fields: readonly (keyof typeof jobs.$inferSelect)[]): string {
  const columns = columnsOf(jobs);
  return columnList(jobs, Object.fromEntries(fields.map((field) => [field, columns[field]])), 'j');
}

export interface Lane {
  head: LaneJob | undefined;
  /** The next jobs in line, in the order in which they will run. */
  next: LaneJob[];
  /** Never above `maxCounted` + 1. */
  waiting: number;
}

// Counting a million rows is expensive, and "more than a thousand" is precise enough.
export const maxCounted = 1000;

const nextStatement = statement(`
  select ${laneColumns}
    from ${tenant}.jobs j
   where j.target_id = :targetId
     and j.lane_rank is not null
   order by j.lane_rank, j.lane_seq
   limit :limit`);

const countStatement = statement(`
  select count(*)::int as count
    from (
      select 1
        from ${tenant}.jobs
       where target_id = :targetId
         and lane_rank is not null
       limit :limit
    ) w`);

export async function readLane(db: Queryable, schema: Schema, targetId: string, show = 20): Promise<Lane> {
  const heads = await readHeads(db, schema, [targetId]);
  const next = await nextStatement.query<LaneJob>(db, schema, { targetId, limit: show });
  const lane = { head: heads.get(targetId), next };
  if (next.length < show) return { ...lane, waiting: next.length };
  const [row] = await countStatement.query<{ count: number }>(db, schema, { targetId, limit: maxCounted + 1 });
  return { ...lane, waiting: row?.count ?? 0 };
}

const headsStatement = statement(`
  select ${laneColumns}, ${hasNoLease(tenant)} as "isUnleased"
    from ${tenant}.jobs j
   where j.target_id = any(:targetIds::text[])
     and j.lane_head`);

/** The heads of many lanes in one statement. */
export async function readHeads(
  db: Queryable,
  schema: Schema,
  targetIds: readonly string[],
): Promise<Map<string, LaneJob>> {
  const rows = await readWaits(db, schema, await headsStatement.query<LaneJob>(db, schema, { targetIds }));
  return new Map(rows.map((row) => [row.targetId, row]));
}

type LaneSelection = 'all' | 'held' | 'paused' | 'running';

export interface LaneRequest {
  selection: LaneSelection;
  /** Part of the target's id. */
  search?: string | undefined;
  /** Only targets with a greater id. */
  after: string;
  limit: number;
}

export interface LaneRow {
  target: Target;
  head: HeadJob | undefined;
  next: LaneJob[];
  waiting: number;
  oldestWaitingAt: string | null;
}

const headFields = [...laneFields, 'progress', 'progressMessage', 'attempt', 'startedAt'] as const;
type HeadJob = LaneJob & Pick<Job, 'progress' | 'progressMessage' | 'attempt' | 'startedAt'>;

const shownNext = 12;
// Reading further for one page would be a scan. The page ends early and has a next one.
const maxScanned = 20_000;
// More running or held lanes than a screen shows. A search narrows them.
const maxActive = 5_000;

export async function listLanes(
  db: Queryable,
  schema: Schema,
  request: LaneRequest,
): Promise<{ lanes: LaneRow[]; next: string | undefined }> {
  const { targets, next } = await pageOfTargets(db, schema, request);
  const targetIds = targets.map((target) => target.id);
  const [heads, lines] = await Promise.all([readHeadJobs(db, schema, targetIds), readLines(db, schema, targetIds)]);
  return {
    lanes: targets.map((target) => {
      const line = lines.get(target.id);
      return {
        target,
        head: heads.get(target.id),
        next: line?.next ?? [],
        waiting: line?.waiting ?? 0,
        oldestWaitingAt: line?.oldest ?? null,
      };
    }),
    next,
  };
}

const pageStatement = statementVariants<{ selection: LaneSelection }>(
  ({ selection }) => `
  with scanned as (
    select *
      from (${sources[selection]}) s
     where s.id > :after
     order by s.id
     limit :maxScanned
  ),
  found as (
    select *
      from scanned
     where :search::text is null
        or position(lower(:search::text) in lower(id)) > 0
     order by id
     limit :limit
  ),
  whole as (
    select count(*)::int as "scannedRows", max(id) as "scannedTo"
      from scanned
  )
  select w.*, f.*
    from whole w
    left join found f on true
   order by f.id`,
);

async function pageOfTargets(db: Queryable, schema: Schema, { selection, search, after, limit }: LaneRequest) {
  const rows = await pageStatement({ selection }).query<Target & { scannedRows: number; scannedTo: string | null }>(
    db,
    schema,
    { after, maxScanned, search: search ?? null, limit: limit + 1 },
  );
  const [whole] = rows;
  const found = rows.filter((row) => row.id !== null).map(({ scannedRows, scannedTo, ...target }) => target);
  const targets = found.slice(0, limit);
  if (found.length > limit) return { targets, next: targets.at(-1)?.id };
  const more = (whole?.scannedRows ?? 0) >= maxScanned;
  return { targets, next: more ? (whole?.scannedTo ?? undefined) : undefined };
}

/** SQL for the targets of each selection, through partial indexes that the engine needs anyway. */
const sources: Record<LaneSelection, string> = {
  all: `select ${targetColumns} from ${tenant}.targets t`,
  paused: `select ${targetColumns} from ${tenant}.targets t where t.paused_at is not null`,
  held: targetsIn(`${headsIn('PAUSED')} union all ${headsIn('ERROR')}`),
  running: targetsIn(`
        select j.target_id
          from (select unnest(job_ids) as id from ${tenant}.leases where state = 'ACTIVE' limit ${maxActive}) l
          join ${tenant}.jobs j on j.id = l.id
         where j.target_id is not null
           and ${statusIn(ownedStatuses, 'j.status')}`),
};

function targetsIn(ids: string): string {
  return `select ${targetColumns} from ${tenant}.targets t where t.id in (${ids})`;
}

function headsIn(status: 'PAUSED' | 'ERROR'): string {
  return `(
        select target_id
          from ${tenant}.jobs
         where status = '${status}'
           and lane_head
           and target_id is not null
         limit ${maxActive})`;
}

const headJobsStatement = statement(`
  select ${jobList(headFields)}
    from ${tenant}.jobs j
   where j.target_id = any(:targetIds::text[])
     and j.lane_head`);

async function readHeadJobs(db: Queryable, schema: Schema, targetIds: readonly string[]) {
  const rows = await readWaits(db, schema, await headJobsStatement.query<HeadJob>(db, schema, { targetIds }));
  return new Map(rows.map((row) => [row.targetId, row]));
}

interface Line {
  next: LaneJob[];
  waiting: number;
  oldest: string | null;
}

const lineCountsStatement = statement(`
  select t.id, w.waiting, w.oldest
    from unnest(:targetIds::text[]) as t(id)
   cross join lateral (
      select count(*)::int as waiting, min(created_at) as oldest
        from (
          select created_at
            from ${tenant}.jobs
           where target_id = t.id
             and lane_rank is not null
           limit :limit
        ) c
    ) w`);

const nextOfManyStatement = statement(`
  select n.*
    from unnest(:targetIds::text[]) as t(id)
   cross join lateral (
      select ${laneColumns}
        from ${tenant}.jobs j
       where j.target_id = t.id
         and j.lane_rank is not null
       order by j.lane_rank, j.lane_seq
       limit :limit
    ) n`);

async function readLines(db: Queryable, schema: Schema, targetIds: readonly string[]): Promise<Map<string, Line>> {
  const counts = await lineCountsStatement.query<{ id: string; waiting: number; oldest: string | null }>(db, schema, {
    targetIds,
    limit: maxCounted + 1,
  });
  const lines = new Map<string, Line>(counts.map(({ id, waiting, oldest }) => [id, { next: [], waiting, oldest }]));
  const busy = counts.filter((row) => row.waiting > 0).map((row) => row.id);
  const next = await nextOfManyStatement.query<LaneJob>(db, schema, { targetIds: busy, limit: shownNext });
  for (const job of next) lines.get(job.targetId)?.next.push(job);
  return lines;
}
