// Targets: pausing and resuming a whole lane, labels, and reading them.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { recordEvent } from '../../events/log/record.ts';
import { problem } from '../../kernel/errors.ts';
import { demotePaused, lockTargets, promote } from './lane.ts';

export interface Target {
  id: string;
  labels: Record<string, string>;
  paused_at: string | null;
  paused_by: string | null;
  pause_reason: string | null;
  paused_until: string | null;
  /** The one job that may run while the target is paused. */
  canary_job_id: string | null;
  created_at: string;
}

const names = [
  'id',
  'labels',
  'paused_at',
  'paused_by',
  'pause_reason',
  'paused_until',
  'canary_job_id',
  'created_at',
] as const satisfies readonly (keyof Target)[];

export function targetColumns(alias: string): string {
  return names.map((name) => `${alias}.${name}`).join(', ');
}

const columns = names.join(', ');

const noCanary = 'canary_job_id = null, canary_paused = false';

export interface TargetRequest {
  targetId: string;
  actor: string;
  author?: string | undefined;
  reason?: string | undefined;
}

/**
 * Stops the lane: a running job continues, nothing starts. Inserts the target if it is new. A canary that runs is an
 * ordinary job from then on: its success no longer ends the pause.
 */
export async function pauseTarget(
  db: Database,
  schema: Schema,
  request: TargetRequest & { until?: string | undefined },
): Promise<Target> {
  return retryConflicts(() =>
    db.transaction(async (tx) => {
      await tx.query(`insert into ${schema}.targets (id) values ($1) on conflict (id) do nothing`, [request.targetId]);
      await lockTargets(tx, schema, [request.targetId]);
      const rows = await tx.query<Target>(
        `update ${schema}.targets set paused_at = now(), paused_by = $2, pause_reason = $3, paused_until = $4, ${noCanary}
          where id = $1 and (paused_at is null or canary_job_id is not null) returning ${columns}`,
        [request.targetId, request.author ?? request.actor, request.reason ?? null, request.until ?? null],
      );
      if (rows[0] === undefined) return mustFindTarget(tx, schema, request.targetId);
      await demotePaused(tx, schema, [request.targetId]);
      await recordEvent(tx, schema, {
        type: 'target.paused',
        actor: request.actor,
        targetId: request.targetId,
        data: { reason: request.reason, author: request.author, until: request.until },
      });
      return rows[0];
    }),
  );
}

export async function resumeTarget(db: Database, schema: Schema, request: TargetRequest): Promise<Target> {
  return retryConflicts(() =>
    db.transaction(async (tx) => {
      await lockTargets(tx, schema, [request.targetId]);
      const rows = await tx.query<Target>(
        `update ${schema}.targets
            set paused_at = null, paused_by = null, pause_reason = null, paused_until = null, ${noCanary}
          where id = $1 and paused_at is not null returning ${columns}`,
        [request.targetId],
      );
      if (rows[0] === undefined) return mustFindTarget(tx, schema, request.targetId);
      await recordEvent(tx, schema, {
        type: 'target.resumed',
        actor: request.actor,
        targetId: request.targetId,
        data: { reason: request.reason, author: request.author },
      });
      await promote(tx, schema, [request.targetId]);
      return rows[0];
    }),
  );
}

/** Ends pauses whose `until` has passed. Returns the targets. */
export async function resumeDueTargets(db: Database, schema: Schema, actor: string, limit = 100): Promise<string[]> {
  const due = await db.query<{ id: string }>(
    `select id from ${schema}.targets where paused_until is not null and paused_until <= now() order by paused_until limit $1`,
    [limit],
  );
  for (const { id } of due) await resumeTarget(db, schema, { targetId: id, actor, reason: 'the pause ran out' });
  return due.map((row) => row.id);
}

export async function labelTarget(
  db: Queryable,
  schema: Schema,
  id: string,
  labels: Record<string, string>,
): Promise<Target> {
  const rows = await db.query<Target>(
    `insert into ${schema}.targets (id, labels) values ($1, $2::jsonb)
     on conflict (id) do update set labels = excluded.labels returning ${columns}`,
    [id, JSON.stringify(labels)],
  );
  return rows[0] as Target;
}

/** Merges labels; null removes one. Undefined: there is no such target, or it would have more than `max`. */
export async function changeLabels(
  db: Queryable,
  schema: Schema,
  id: string,
  labels: Record<string, string | null>,
  max: number,
): Promise<Target | undefined> {
  const removed = Object.keys(labels).filter((name) => labels[name] === null);
  const [target] = await db.query<Target>(
    `with merged as (
       select id, (labels || $2::jsonb) - $3::text[] as labels from ${schema}.targets where id = $1 for no key update)
     update ${schema}.targets t set labels = m.labels from merged m
      where t.id = m.id and (select count(*) from jsonb_object_keys(m.labels)) <= $4
     returning ${targetColumns('t')}`,
    [id, JSON.stringify(labels), removed, max],
  );
  return target;
}

export async function mustFindTarget(db: Queryable, schema: Schema, id: string): Promise<Target> {
  const rows = await db.query<Target>(`select ${columns} from ${schema}.targets where id = $1`, [id]);
  if (rows[0] === undefined) throw problem('NOT_FOUND', 'There is no such target.');
  return rows[0];
}

export async function listTargets(
  db: Queryable,
  schema: Schema,
  options: { after: string; limit: number; paused?: boolean | undefined },
): Promise<Target[]> {
  const paused = options.paused === undefined ? '' : `and (paused_at is not null) = ${options.paused}`;
  return db.query<Target>(`select ${columns} from ${schema}.targets where id > $1 ${paused} order by id limit $2`, [
    options.after,
    options.limit,
  ]);
}
