// Violations that the rows and histories of jobs must never have (docs/guarantees.md).
import type { Queryable } from '../../../server/database/database.ts';
import type { Schema } from '../../../server/database/identifiers.ts';
import { type Status, terminalStatuses } from '../../../server/jobs/model/states.ts';

/** Each finds rows that must not be. `j` is a job, `t` its target. */
const rules: Record<string, string> = {
  'I1 a lane has two heads': `j.lane_head and exists (select 1 from SCHEMA.jobs o where o.target_id = j.target_id and o.lane_head and o.id <> j.id)`,
  'I2 a lane with a line has no head': `j.lane_rank is not null and t.paused_at is null and not exists (select 1 from SCHEMA.jobs h where h.target_id = j.target_id and h.lane_head)`,
  'I2 a paused target has a head that could be claimed': `j.status = 'QUEUED' and j.lane_head and t.paused_at is not null and t.canary_job_id is distinct from j.id`,
  'I2 a held job does not hold its lane': `j.target_id is not null and (j.status = 'PAUSED' or (j.status = 'ERROR' and j.on_error = 'block')) and not j.lane_head and j.lane_rank is distinct from 0`,
  'I3 a queued job is neither head nor in line': `j.status = 'QUEUED' and not j.lane_head and j.lane_rank is null`,
  'I3 an owned job has no live lease': `j.status in ('CLAIMED','PREPARING','LEASE_PENDING','RUNNING') and not exists (select 1 from SCHEMA.leases l where l.id = j.lease_id and l.state = 'ACTIVE' and j.id = any(l.job_ids))`,
  'I3 a scheduled job stands in line': `j.status = 'PENDING' and j.lane_rank is not null`,
  'I3 a waiting job stands in line, or has no clock that stands still': `j.status = 'WAITING' and (j.lane_rank is not null or j.held_since is null or j.waiting is null)`,
  'I3 a job that does not wait says for what': `j.status <> 'WAITING' and j.waiting is not null`,
  'I4 a job that nobody owns has an owner': `j.status not in ('CLAIMED','PREPARING','LEASE_PENDING','RUNNING') and j.lease_owner is not null`,
  'I5 an ended job is still in its lane': `j.target_id is not null and j.status in ('SUCCESS','PARTIAL','CANCELED') and (j.lane_head or j.lane_rank is not null)`,
  'I5 an ended job has an open question': `j.status in ('SUCCESS','PARTIAL','CANCELED') and exists (select 1 from SCHEMA.questions q where q.job_id = j.id and q.status = 'open')`,
  'I6 more attempts than allowed': `j.attempt - j.attempt_floor > j.max_attempts`,
  'I7 a job that does not run carries a wish to stop': `j.status <> 'RUNNING' and j.cancel_requested`,
};

export async function brokenRows(db: Queryable, schema: Schema): Promise<string[]> {
  const selects = Object.entries(rules).map(
    ([name, rule]) =>
      `select '${name}' as name, j.id, j.status from ${schema}.jobs j
         left join ${schema}.targets t on t.id = j.target_id where ${rule.replaceAll('SCHEMA', schema)}`,
  );
  const rows = await db.query<{ name: string; id: string; status: string }>(selects.join(' union all '));
  return rows.map((row) => `${row.name}: ${row.id} (${row.status})`);
}

/** An event, with the present state of its job. */
export interface EventRow {
  job_id: string;
  type: string;
  from_status: Status | null;
  to_status: Status | null;
  lease_id: string | null;
  attempt: number;
  data: { error?: { code?: string }; fenced_lease_id?: string } | null;
  present: Status;
  present_attempt: number;
}

/**
 * Events of a running job that may follow an acknowledged stop request. Any other would start it again, or ignore the
 * request.
 */
const afterAsking: Record<string, readonly string[]> = {
  'job.cancel_requested': ['job.canceled', 'job.completed', 'job.partial'],
  'job.pause_requested': ['job.paused', 'job.canceled', 'job.completed', 'job.partial', 'job.failed'],
};

/** All events of jobs, those of each job together and in order. */
export function historyQuery(schema: Schema): string {
  return `select e.job_id, e.seq, e.target_id, e.actor, e.type, e.from_status, e.to_status, e.lease_id, e.attempt, e.data,
                 extract(epoch from e.at)::float8 * 1000 as time, j.status as present, j.attempt as present_attempt
            from ${schema}.events e join ${schema}.jobs j on j.id = e.job_id order by e.job_id, e.seq`;
}

export interface BrokenHistory<T extends EventRow> {
  text: string;
  /** Where it shows. */
  event: T;
}

export function brokenHistories<T extends EventRow>(rows: readonly T[]): BrokenHistory<T>[] {
  const histories = new Map<string, T[]>();
  for (const row of rows) {
    const history = histories.get(row.job_id);
    if (history === undefined) histories.set(row.job_id, [row]);
    else history.push(row);
  }
  return [...histories.values()].flatMap(brokenHistory);
}

function brokenHistory<T extends EventRow>(events: T[]): BrokenHistory<T>[] {
  const broken: BrokenHistory<T>[] = [];
  const { job_id: id, present, present_attempt: presentAttempt } = events[0] as T;
  let at = events[0] as T;
  const wrong = (what: string) => broken.push({ text: `${what}: ${id}`, event: at });
  let owner: string | null = null;
  let asked: string | undefined;
  let attempts = 0;
  let ends = 0;
  const leases = new Set<string>();
  for (const event of events) {
    at = event;
    const { from_status: from, to_status: to, lease_id: lease } = event;
    const owned = from === 'RUNNING';
    // A handler that does not stop loses its lease to one that only its daemon knows.
    if (event.type === 'job.handler_unresponsive') {
      if (event.data?.fenced_lease_id !== owner) wrong('I4 a lease was fenced off that did not run');
      owner = lease;
    }
    if (owned && lease !== owner) wrong(`I4 ${event.type} carries another lease than the one that runs`);
    if (event.type in afterAsking) asked = event.type;
    if (from === to || to === null) continue;
    if (asked !== undefined && !afterAsking[asked]?.includes(event.type)) wrong(`I7 ${event.type} after ${asked}`);
    asked = undefined;
    if (terminalStatuses.includes(to)) ends += 1;
    if (to === 'RUNNING') {
      if (lease !== null && leases.has(lease)) wrong('I1 one lease started the job twice');
      if (lease !== null) leases.add(lease);
      owner = lease;
      attempts += 1;
      if (event.attempt !== attempts) wrong(`I6 attempt ${event.attempt} is counted as ${attempts}`);
    }
    // An attempt that was given back did not count.
    if ((owned || from === 'ERROR') && event.type === 'job.requeued') attempts -= 1;
  }
  if (ends !== (terminalStatuses.includes(present) ? 1 : 0))
    wrong(`I5 ${ends} terminal events of a job that is ${present}`);
  if (attempts !== presentAttempt) wrong(`I6 ${attempts} attempts in the log, ${presentAttempt} in the row`);
  return broken;
}
