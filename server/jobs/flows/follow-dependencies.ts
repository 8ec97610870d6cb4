// The follower that releases jobs when the jobs they wait for have ended. It reads two kinds of events: ends of jobs,
// and jobs that begin to wait. When it reads the later of the two, both are committed, so no end is missed in either
// order and no lock is needed. A tenant without unfinished edges costs one probe, and its log is not read.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { type FollowResult, followSelection, runFollowerStep } from '../../events/log/follower.ts';
import type { ReportSetAside } from '../../events/log/set-aside.ts';
import { durableSnapshot } from '../../events/log/transaction-ids.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import type { CommitSignals } from '../commit-signals.ts';
import { queueDueJobs } from '../finish/due-jobs.ts';
import { type Status, transitions } from '../model/states.ts';
import { cancelChildren } from './cancel-children.ts';
import { isUnfinished, noStep } from './dependencies.ts';
import { resolveDependencies } from './resolve-dependencies.ts';

const dependenciesFollower = 'dependencies';

const eventsPerStep = 2000;
/** The number of jobs per check when the follower begins. */
const slice = 1000;

const wantedStatuses: readonly Status[] = ['SUCCESS', 'PARTIAL', 'CANCELED', 'ERROR', 'WAITING'];
const wantedEvents = [
  ...new Set(
    Object.values(transitions)
      .filter(({ to }) => wantedStatuses.includes(to))
      .map(({ event }) => event),
  ),
];

/** A call may not have begun to wait when its last child ends. */
const isOpenCall = `p.kind = 'children' and p.status = 'pending'`;

/** SQL: true if jobs wait for others, or may be about to. Reads the front of small indexes. */
function hasWaiting(schema: string): string {
  return `(exists (select 1 from ${schema}.dependencies d where ${isUnfinished()})
    or exists (select 1 from ${schema}.phases p where ${isOpenCall}))`;
}

/** SQL: true if children must be canceled. */
function hasCanceling(schema: string): string {
  return `exists (select 1 from ${schema}.dependencies d where d.state = 'canceling')`;
}

/**
 * SQL: true if the follower has work. `hasReadAll` is a predicate over followers `f`: one has read the log to its end.
 */
export function hasDependencyWork(schema: string, hasReadAll: string): string {
  return `(${hasCanceling(schema)}
    or (${hasWaiting(schema)}
      and not exists (
        select 1 from ${schema}.followers f
         where f.name = '${dependenciesFollower}' and (f.state ->> 'active')::boolean and ${hasReadAll})))`;
}

const stateStatement = statement(`
  select ${hasWaiting(tenant)} or ${hasCanceling(tenant)} as open,
         coalesce((select (f.state ->> 'active')::boolean from ${tenant}.followers f where f.name = :name), false) as active`);

interface FollowerState {
  /** The follower has read the log without a gap since it last checked all edges. */
  active?: boolean;
}

/** Runs one step. Returns undefined if the tenant has no unfinished edges. @internal Exported for tests. */
export async function followDependencies(db: Database, schema: Schema): Promise<FollowResult | undefined> {
  const [found] = await stateStatement.query<{ open: boolean; active: boolean }>(db, schema, {
    name: dependenciesFollower,
  });
  if (found?.open !== true) {
    if (found?.active === true) await deactivate(db, schema);
    return undefined;
  }
  return found.active ? follow(db, schema) : activate(db, schema);
}

const deactivateStatement = statement(`
  update ${tenant}.followers
     set state = '{}'::jsonb
   where name = :name
  returning name`);

/**
 * Deactivates the follower, whose position then has no meaning. The next activation finds an edge that is inserted at
 * this moment.
 */
async function deactivate(db: Database, schema: Schema): Promise<void> {
  await deactivateStatement.query(db, schema, { name: dependenciesFollower });
}

/** Checks all edges that exist now, and follows the log from now on. */
async function activate(db: Database, schema: Schema): Promise<FollowResult> {
  return runFollowerStep<FollowerState>(db, schema, dependenciesFollower, { startAt: 'now' }, async (tx) => {
    // Reads the position before the edges, so that a change committed meanwhile is checked and read.
    const [now] = await tx.query<{ seen: string }>(`select ${durableSnapshot(schema)}::text as seen`);
    if (now === undefined) throw new Error('the database returned no snapshot');
    const handled = await checkAll(tx, schema);
    return { position: now, state: { active: true }, handled, complete: true, moved: true, ahead: false };
  });
}

const waitingStatement = statement(`
  select id
    from (
      (select distinct d.job_id as id
         from ${tenant}.dependencies d
        where d.job_id > :after
          and ${isUnfinished()}
        order by d.job_id
        limit :limit)
      union
      (select distinct p.job_id
         from ${tenant}.phases p
        where p.job_id > :after
          and ${isOpenCall}
        order by p.job_id
        limit :limit)
    ) w
   order by id
   limit :limit`);

async function checkAll(tx: Queryable, schema: Schema): Promise<number> {
  let after = '00000000-0000-0000-0000-000000000000';
  let due = 0;
  for (;;) {
    const rows = await waitingStatement.query<{ id: string }>(tx, schema, { after, limit: slice });
    const waiting = rows.map((row) => row.id);
    due += await resolveDependencies(tx, schema, { ended: [], waiting });
    await cancelChildrenOf(tx, schema, waiting);
    if (waiting.length < slice) return due;
    after = waiting.at(-1) as string;
  }
}

interface TouchedRow {
  job_id: string;
  to_status: Status;
}

/** Changes that other jobs wait for, and changes of jobs that wait. */
const touchedByChanges = `changes as (
    select distinct job_id, to_status
      from log
     where until is null
       and job_id is not null
       and to_status = any(:wantedStatuses::text[])
  ),
  touched as (
    select c.job_id, c.to_status
      from changes c
     where (c.to_status <> 'WAITING' and exists (
             select 1
               from ${tenant}.dependencies d
              where d.after_id = c.job_id
                and ${isUnfinished()}))
        or (c.to_status in ('WAITING', 'CANCELED') and exists (
             select 1
               from ${tenant}.dependencies d
              where d.job_id = c.job_id))
  )`;

async function follow(db: Database, schema: Schema): Promise<FollowResult> {
  const selection = {
    name: dependenciesFollower,
    limit: eventsPerStep,
    types: wantedEvents,
    ctes: touchedByChanges,
    from: 'touched',
    parameters: { wantedStatuses },
  };
  return followSelection<TouchedRow>(db, schema, selection, {
    async handle(tx, rows) {
      const idsOf = (wanted: (status: Status) => boolean) => [
        ...new Set(rows.filter((row) => wanted(row.to_status)).map((row) => row.job_id)),
      ];
      await resolveDependencies(tx, schema, {
        ended: idsOf((status) => status !== 'WAITING'),
        waiting: idsOf((status) => status === 'WAITING'),
      });
      await cancelChildrenOf(
        tx,
        schema,
        idsOf((status) => status === 'CANCELED'),
      );
    },
  });
}

const markChildrenStatement = statement(`
  update ${tenant}.dependencies d
     set state = 'canceling'
    from ${tenant}.jobs j
   where d.job_id = any(:jobIds::uuid[])
     and d.step <> '${noStep}'
     and ${isUnfinished()}
     and j.id = d.job_id
     and j.status = 'CANCELED'`);

/** Marks the children of canceled parents. cancel-children.ts cancels them in batches, after this transaction. */
async function cancelChildrenOf(tx: Queryable, schema: Schema, jobIds: readonly string[]): Promise<void> {
  if (jobIds.length > 0) await markChildrenStatement.query(tx, schema, { jobIds });
}

// The run for one tenant: follows the log, cancels children, and queues the jobs that are ready.

interface DependencyFollowerOptions {
  db: Database;
  actor: string;
  signals: Pick<CommitSignals, 'jobsWritten'>;
  onSetAside: ReportSetAside;
}

const dueAtOnce = 500;

/** Tracks which tenants have jobs that wait for others, so that commits of other tenants cost nothing here. */
export class DependencyFollower {
  readonly #options: DependencyFollowerOptions;
  /** By slug. */
  readonly #active = new Set<string>();

  constructor(options: DependencyFollowerOptions) {
    this.#options = options;
  }

  /** True if jobs of the tenant wait for others, as far as this daemon knows. The poll finds the rest. */
  isActive(slug: string): boolean {
    return this.#active.has(slug);
  }

  async runForTenant(tenant: Tenant): Promise<'more' | 'some' | 'idle'> {
    const { db, actor, onSetAside } = this.#options;
    const followed = await followDependencies(db.forTenant(tenant.schema), tenant.schema);
    if (followed === undefined) {
      this.#active.delete(tenant.slug);
      return 'idle';
    }
    this.#active.add(tenant.slug);
    onSetAside(tenant, followed.setAside);
    const more = await cancelChildren(db.forTenant(tenant.schema), tenant.schema, actor);
    if (followed.handled > 0 || more) await this.#queueDue(tenant);
    if (!followed.complete || more) return 'more';
    return followed.busy ? 'some' : 'idle';
  }

  async #queueDue(tenant: Tenant): Promise<void> {
    const { db, actor, signals } = this.#options;
    for (;;) {
      const queued = await queueDueJobs(db.forTenant(tenant.schema), tenant.schema, actor, dueAtOnce);
      if (queued > 0) signals.jobsWritten(tenant);
      if (queued < dueAtOnce) return;
    }
  }
}
