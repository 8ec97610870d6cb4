// Targets: pauses and resumes whole lanes, stores labels, and reads targets.
import { and, asc, eq, gt, isNotNull, isNull, type SQL } from 'drizzle-orm';
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { build, columnList, columnsOf, defineRead, type RowOf } from '../../database/reads/drizzle.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { targets } from '../../database/tables/tenant.ts';
import { recordEvent } from '../../events/log/record.ts';
import { problem } from '../../kernel/errors.ts';
import { demotePaused, lockTargets, promote } from './lane.ts';

const { laneSeq: _, canaryPaused: __, ...selection } = columnsOf(targets);

/** All columns except those that only the engine uses, as `t.id, …`. */
export const targetColumns = columnList(targets, selection, 't');

export interface Target extends Omit<RowOf<typeof targets>, 'laneSeq' | 'canaryPaused'> {
  labels: Record<string, string>;
}

export interface TargetRequest {
  targetId: string;
  actor: string;
  author?: string | undefined;
  reason?: string | undefined;
}

const noCanary = `canary_job_id = null,
         canary_paused = false`;

const insertTarget = statement(`
  insert into ${tenant}.targets (id)
  values (:targetId)
  on conflict (id) do nothing`);

const pauseStatement = statement(`
  update ${tenant}.targets t
     set paused_at = now(),
         paused_by = :author,
         pause_reason = :reason,
         paused_until = :until,
         ${noCanary}
   where id = :targetId
     and (paused_at is null or canary_job_id is not null)
  returning ${targetColumns}`);

/**
 * Stops the lane: a running job continues, and no other starts. Inserts the target if it is new. A running canary
 * becomes an ordinary job: its success no longer ends the pause.
 */
export async function pauseTarget(
  db: Database,
  schema: Schema,
  request: TargetRequest & { until?: string | undefined },
): Promise<Target> {
  const { targetId, actor, author, reason, until } = request;
  return retryConflicts(() =>
    db.transaction(async (tx) => {
      await insertTarget.query(tx, schema, { targetId });
      await lockTargets(tx, schema, [targetId]);
      const [paused] = await pauseStatement.query<Target>(tx, schema, {
        targetId,
        author: author ?? actor,
        reason: reason ?? null,
        until: until ?? null,
      });
      if (paused === undefined) return mustFindTarget(tx, schema, targetId);
      await demotePaused(tx, schema, [targetId]);
      await recordEvent(tx, schema, { type: 'target.paused', actor, targetId, data: { reason, author, until } });
      return paused;
    }),
  );
}

const resumeStatement = statement(`
  update ${tenant}.targets t
     set paused_at = null,
         paused_by = null,
         pause_reason = null,
         paused_until = null,
         ${noCanary}
   where id = :targetId
     and paused_at is not null
  returning ${targetColumns}`);

export async function resumeTarget(db: Database, schema: Schema, request: TargetRequest): Promise<Target> {
  const { targetId, actor, author, reason } = request;
  return retryConflicts(() =>
    db.transaction(async (tx) => {
      await lockTargets(tx, schema, [targetId]);
      const [resumed] = await resumeStatement.query<Target>(tx, schema, { targetId });
      if (resumed === undefined) return mustFindTarget(tx, schema, targetId);
      await recordEvent(tx, schema, { type: 'target.resumed', actor, targetId, data: { reason, author } });
      await promote(tx, schema, [targetId]);
      return resumed;
    }),
  );
}

const dueStatement = statement(`
  select id
    from ${tenant}.targets
   where paused_until is not null
     and paused_until <= now()
   order by paused_until
   limit :limit`);

/** Ends pauses whose `until` has passed. Returns the targets. */
export async function resumeDueTargets(db: Database, schema: Schema, actor: string, limit = 100): Promise<string[]> {
  const due = await dueStatement.query<{ id: string }>(db, schema, { limit });
  for (const { id } of due) await resumeTarget(db, schema, { targetId: id, actor, reason: 'the pause ran out' });
  return due.map((row) => row.id);
}

const labelStatement = statement(`
  insert into ${tenant}.targets as t (id, labels)
  values (:id, :labels::jsonb)
  on conflict (id) do update
     set labels = excluded.labels
  returning ${targetColumns}`);

export async function labelTarget(
  db: Queryable,
  schema: Schema,
  id: string,
  labels: Record<string, string>,
): Promise<Target> {
  const [target] = await labelStatement.query<Target>(db, schema, { id, labels: JSON.stringify(labels) });
  return target as Target;
}

const changeLabelsStatement = statement(`
  with merged as (
    select id, (labels || :labels::jsonb) - :removed::text[] as labels
      from ${tenant}.targets
     where id = :id
       for no key update
  )
  update ${tenant}.targets t
     set labels = m.labels
    from merged m
   where t.id = m.id
     and (select count(*) from jsonb_object_keys(m.labels)) <= :max
  returning ${targetColumns}`);

/** Merges labels; null removes one. Returns undefined if there is no such target, or it would have more than `max`. */
export async function changeLabels(
  db: Queryable,
  schema: Schema,
  id: string,
  labels: Record<string, string | null>,
  max: number,
): Promise<Target | undefined> {
  const removed = Object.keys(labels).filter((name) => labels[name] === null);
  const changes = { id, labels: JSON.stringify(labels), removed, max };
  const [target] = await changeLabelsStatement.query<Target>(db, schema, changes);
  return target;
}

const byId = defineRead<{ id: string }>()(({ id }) => build.select(selection).from(targets).where(eq(targets.id, id)));

export async function mustFindTarget(db: Queryable, schema: Schema, id: string): Promise<Target> {
  const [target] = await byId(db, schema, { id });
  if (target === undefined) throw problem('NOT_FOUND', 'There is no such target.');
  return target as Target;
}

const pageWhere = (isPaused: SQL | undefined) =>
  defineRead<{ after: string; limit: number }>()(({ after, limit }) =>
    build
      .select(selection)
      .from(targets)
      .where(and(gt(targets.id, after), isPaused))
      .orderBy(asc(targets.id))
      .limit(limit),
  );
const pageOfAll = pageWhere(undefined);
const pageOfPaused = pageWhere(isNotNull(targets.pausedAt));
const pageOfRunning = pageWhere(isNull(targets.pausedAt));

/** Lists targets in the order of their ids. */
export async function listTargets(
  db: Queryable,
  schema: Schema,
  { paused, ...page }: { after: string; limit: number; paused?: boolean | undefined },
): Promise<Target[]> {
  const read = paused === undefined ? pageOfAll : paused ? pageOfPaused : pageOfRunning;
  return (await read(db, schema, page)) as Target[];
}
