// The claim: atomically taking the next runnable jobs of a tenant. One path for the daemon's own
// workers (→ RUNNING under a lease) and for remote ones (→ CLAIMED, a lease to be asked for).
// It reads exactly the partial index of heads, whatever waits behind held lanes.
import { v7 as uuidv7 } from 'uuid';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { answerBytes, jsonBytes } from '../../database/json-bytes.ts';
import { type EventSelect, insertEvents } from '../../events/log/record.ts';
import { type Job, priorityRank } from '../model/job.ts';
import { become, guard, transitions } from '../model/states.ts';
import { type ClaimedRow, returningClaimed, selectClaimed, toClaimedJobs } from './claimed-job.ts';
import { insertLease, type LeasePlaces } from './lease.ts';

export interface ClaimRequest {
  owner: string;
  limit: number;
  leaseSeconds: number;
  /** Named by a caller that wants to know it even if the answer is lost. */
  leaseId?: string | undefined;
  /** Only these job types; undefined takes any. */
  types?: readonly string[] | undefined;
}

export interface NamedClaim extends ClaimRequest {
  leaseId: string;
}

export interface RemoteClaimRequest extends ClaimRequest {
  queue: string;
  maxCostUnits?: number | undefined;
  /** What jobs may ask of the worker: `gpu_required` needs `gpu_required: true` here. */
  met?: Record<string, boolean> | undefined;
}

export interface Claimed {
  leaseId: string;
  jobs: Job[];
  /** There were more, whose payloads would have been too many bytes for one claim. */
  isCut?: boolean;
}

/** Takes up to `limit` jobs for a daemon; they share one lease id and are RUNNING when this returns. */
export async function claimJobs(db: Queryable, schema: Schema, request: ClaimRequest): Promise<Claimed> {
  return claim(db, schema, request, local(schema, 'not remote', 'true'), []);
}

/** Takes those of `jobIds` that can be claimed: the caller has chosen, e.g. what fits its capacity. */
export async function claimChosenJobs(
  db: Queryable,
  schema: Schema,
  request: ClaimRequest,
  jobIds: readonly string[],
): Promise<Claimed> {
  return claim(db, schema, request, local(schema, 'not remote and id = any($7::uuid[])', 'true', '0'), [jobIds]);
}

/** Takes up to `limit` jobs for a remote worker; CLAIMED until a lease is granted or the claim expires. */
export async function claimRemoteJobs(db: Queryable, schema: Schema, request: RemoteClaimRequest): Promise<Claimed> {
  const wanted = `cost_units <= $8
    and not exists (select 1 from jsonb_each(constraints) as c(name, wanted)
                     where right(c.name, 9) = '_required' and c.wanted = 'true'::jsonb and ($9::jsonb -> c.name) is distinct from 'true'::jsonb)`;
  // A batch shares its claim, which only expires; each job gets a lease of its own when it is granted one.
  const by: Claim = {
    transition: 'claim',
    kind: 'claim',
    found: heads(schema, 'claim', 'remote and queue = $7', wanted),
  };
  return claim(db, schema, request, by, [
    request.queue,
    request.maxCostUnits ?? 2_147_483_647,
    JSON.stringify(request.met ?? {}),
  ]);
}

interface Claim {
  transition: 'start' | 'claim';
  kind: 'local' | 'claim';
  /** Selects the jobs that could be taken. */
  found: string;
}

function local(schema: Schema, found: string, wanted: string, bytes?: string): Claim {
  return { transition: 'start', kind: 'local', found: heads(schema, 'start', found, wanted, bytes) };
}

/**
 * The heads that can be claimed, in claim order; those that others are at are stepped around. `found` is
 * what the index knows, `wanted` the rest: only what is wanted may be locked, whatever the plan.
 */
function heads(
  schema: Schema,
  transition: 'start' | 'claim',
  found: string,
  wanted: string,
  bytes = jsonBytes('payload'),
): string {
  return `select id, priority, created_at, ${bytes} as bytes from ${schema}.jobs
        where ${guard(transition)} and lane_head and ${found}
          and case when ($6::text[] is null or type = any($6::text[])) and ${wanted}
              then target_id is null or pg_try_advisory_xact_lock(hashtextextended(target_id, $5::bigint))
              else false end
        order by priority, created_at, id limit $2 for update skip locked`;
}

/** Of the rows in `from`, those that one claim may take. What is locked and left out is free again with the commit. */
export function withinClaim(from: string): string {
  return `select id from (
         select id, bytes, sum(bytes) over (order by priority, created_at, id) as total from ${from}) f
        where total - bytes < ${answerBytes}`;
}

async function claim(
  db: Queryable,
  schema: Schema,
  request: ClaimRequest,
  { transition, kind, found }: Claim,
  values: unknown[],
): Promise<Claimed> {
  const leaseId = request.leaseId ?? uuidv7();
  const given: LeasePlaces = { lease: '$1::uuid', owner: '$3', seconds: '$4' };
  const rows = await db.query<ClaimedRow>(
    `with found as materialized (${found}),
     picked as (${withinClaim('found')}),
     ${take(schema, transition, kind, given)},
     told as (${insertEvents(schema, startOf(transition, given))})
     ${selectClaimed(transition === 'start', '(select count(*) from found) > (select count(*) from picked) as cut')}`,
    [
      leaseId,
      request.limit,
      request.owner,
      request.leaseSeconds,
      advisoryKey(schema),
      request.types ?? null,
      ...values,
    ],
    'often',
  );
  return toClaimed(rows, transition, leaseId, request.owner);
}

/** The CTEs of a claim behind `picked`: `taken`, the lease, and `claimed`, the jobs. */
export function take(
  schema: Schema,
  transition: 'start' | 'claim',
  kind: 'local' | 'claim',
  given: LeasePlaces,
  writes = '',
): string {
  const starts = transition === 'start' ? 'attempt = attempt + 1, started_at = now(),' : '';
  return `taken as (${insertLease(schema, kind, given, 'picked')}),
     claimed as (
       update ${schema}.jobs set ${become(transition)}, ${writes} lease_id = ${given.lease}, lease_owner = ${given.owner}, ${starts}
         progress = null, progress_message = null, cancel_requested = false, cancel_intent = null, cancel_detail = null, updated_at = now()
        where id = any(array(select id from picked)) and ${guard(transition)}
       returning ${returningClaimed})`;
}

/** The events of `claimed`. */
export function startOf(transition: 'start' | 'claim', { lease, owner }: LeasePlaces): EventSelect {
  return {
    source: 'claimed',
    type: `'${transitions[transition].event}'`,
    actor: `'worker:' || ${owner}`,
    from: `'${transitions[transition].from[0]}'`,
    to: `'${transitions[transition].to}'`,
    lease,
  };
}

export function toClaimed(rows: ClaimedRow[], transition: 'start' | 'claim', leaseId: string, owner: string): Claimed {
  const jobs = toClaimedJobs(rows, { status: transitions[transition].to, leaseId, leaseOwner: owner });
  // RETURNING has no order; handlers start in the order of the claim.
  jobs.sort(byClaimOrder);
  return { leaseId, jobs, isCut: rows[0]?.cut ?? false };
}

function byClaimOrder(a: Job, b: Job): number {
  const byPriority = priorityRank(a.priority) - priorityRank(b.priority);
  if (byPriority !== 0) return byPriority;
  if (a.createdAt !== b.createdAt) return a.createdAt < b.createdAt ? -1 : 1;
  return a.id < b.id ? -1 : 1;
}

/** Advisory locks are one space per database: the schema is the seed of a target's hash. */
function advisoryKey(schema: Schema): number {
  let hash = 5381;
  for (let i = 0; i < schema.length; i++) hash = (Math.imul(hash, 33) + schema.charCodeAt(i)) | 0;
  return hash;
}
