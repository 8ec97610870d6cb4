// The claim takes the next runnable jobs of a tenant, atomically. The daemon's own workers (→ RUNNING under a lease)
// and remote workers (→ CLAIMED, with a lease to request) use the same statement. It reads only the partial index of
// heads, however many jobs wait behind held lanes.

import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { claimBytes, jsonBytes } from '../../database/reads/bounded-reads.ts';
import { type Parameters, statementVariants, tenant } from '../../database/sql.ts';
import { isClaimable } from '../../database/tables/tenant-jobs.ts';
import { type EventSelect, insertEvents } from '../../events/log/record.ts';
import { newId } from '../../kernel/ids.ts';
import { maxInt4 } from '../../kernel/limits.ts';
import { type Job, priorityRank } from '../model/job.ts';
import { transition } from '../transition.ts';
import { type ClaimedRow, claimedColumns, returningClaimed, toClaimedJobs } from './claimed-job.ts';
import { insertLease, type LeaseValues } from './lease.ts';

export interface ClaimRequest {
  owner: string;
  limit: number;
  leaseSeconds: number;
  /** Set by callers that must know the id even if the answer is lost. */
  leaseId?: string | undefined;
  /** Claims only these job types; undefined claims any. */
  types?: readonly string[] | undefined;
}

export interface NamedClaim extends ClaimRequest {
  leaseId: string;
}

export interface RemoteClaimRequest extends ClaimRequest {
  queue: string;
  maxCostUnits?: number | undefined;
  /** The requirements that the worker meets. A job with `gpu_required` needs `gpu_required: true` here. */
  met?: Record<string, boolean> | undefined;
}

export interface Claimed {
  leaseId: string;
  jobs: Job[];
  /** The claim left out jobs because their payloads would exceed the limit of bytes for one claim. */
  isCut?: boolean;
  /**
   * The claim skipped jobs that other transactions had locked. Such a transaction may leave them as they are, for
   * example the second of two answers, and wakes nobody then: claim again.
   */
  hasSkipped?: boolean;
}

/** Claims up to `limit` jobs for a daemon. They share one lease id and are RUNNING when this returns. */
export async function claimJobs(db: Queryable, schema: Schema, request: ClaimRequest): Promise<Claimed> {
  return claim(db, schema, request, { by: 'daemon' });
}

/** Claims those of `jobIds` that are claimable. The caller has chosen them, for example by its capacity. */
export async function claimChosenJobs(
  db: Queryable,
  schema: Schema,
  request: ClaimRequest,
  jobIds: readonly string[],
): Promise<Claimed> {
  return claim(db, schema, request, { by: 'choice' }, { jobIds });
}

/** Claims up to `limit` jobs for a remote worker. They are CLAIMED until a lease is granted or the claim expires. */
export async function claimRemoteJobs(db: Queryable, schema: Schema, request: RemoteClaimRequest): Promise<Claimed> {
  return claim(
    db,
    schema,
    request,
    { by: 'remoteWorker' },
    {
      queue: request.queue,
      maxCostUnits: request.maxCostUnits ?? maxInt4,
      met: JSON.stringify(request.met ?? {}),
    },
  );
}

interface ClaimVariant {
  by: 'daemon' | 'choice' | 'remoteWorker';
}

type Start = 'start' | 'claim';

async function claim(
  db: Queryable,
  schema: Schema,
  request: ClaimRequest,
  variant: ClaimVariant,
  parameters: Parameters = {},
): Promise<Claimed> {
  const leaseId = request.leaseId ?? newId();
  const rows = await claimStatement(variant).query<ClaimedRow>(
    db,
    schema,
    {
      leaseId,
      limit: request.limit,
      owner: request.owner,
      leaseSeconds: request.leaseSeconds,
      advisoryKey: advisoryKey(schema),
      types: request.types ?? null,
      ...parameters,
    },
    // The claim's index has the order of the claim, so the plan is good for any table. Chosen jobs are found by their ids.
    variant.by === 'choice' ? 'prepared' : 'keepPlan',
  );
  return toClaimed(rows, transitionOf(variant), leaseId, request.owner);
}

function transitionOf({ by }: ClaimVariant): Start {
  return by === 'remoteWorker' ? 'claim' : 'start';
}

/** Conditions that the indexes of claimable heads cover. The update repeats the guard of the transition. */
const indexed: Record<ClaimVariant['by'], string> = {
  daemon: isClaimable('daemon', 'j.'),
  choice: `${isClaimable('daemon', 'j.')} and id = any(:jobIds::uuid[])`,
  remoteWorker: `${isClaimable('remoteWorker', 'j.')} and queue = :queue`,
};

const requirementsMet = `not exists (
               select 1
                 from jsonb_each(constraints) as c(name, wanted)
                where right(c.name, 9) = '_required'
                  and c.wanted = 'true'::jsonb
                  and (:met::jsonb -> c.name) is distinct from 'true'::jsonb)`;

const claimLease: LeaseValues = { lease: ':leaseId::uuid', owner: ':owner::text', seconds: ':leaseSeconds' };

/** Conditions on jobs that the request leaves to the claim; the index does not cover them. */
function isWanted({ by }: ClaimVariant): string {
  return `(:types::text[] is null or type = any(:types::text[]))
              ${by === 'remoteWorker' ? `and cost_units <= :maxCostUnits and ${requirementsMet}` : ''}`;
}

/**
 * How many jobs this snapshot shows as claimable, up to the limit. If fewer were found, the others were locked. In
 * claim order, because Postgres would otherwise prefer to read the whole table at times.
 */
function countClaimable(variant: ClaimVariant): string {
  return `
    select count(*)
      from (
        select 1
          from ${tenant}.jobs j
         where ${indexed[variant.by]}
           and ${isWanted(variant)}
         order by priority, created_at, id
         limit :limit
      ) as claimable`;
}

/**
 * `found` locks claimable heads in claim order and skips rows that another claim or a lane change has locked. The CASE
 * ensures that only wanted jobs are locked, whatever the plan. Jobs that are locked but not picked are unlocked by the
 * commit. A claim without jobs returns one row without a job.
 * @internal
 */
export const claimStatement = statementVariants<ClaimVariant>((variant) => {
  const name = transitionOf(variant);
  // The jobs of a remote claim share it, and it is never renewed. Each job gets its own lease when one is granted.
  const kind = variant.by === 'remoteWorker' ? 'claim' : 'local';
  return `
  with found as materialized (
    select id, priority, created_at, ${variant.by === 'choice' ? '0' : jsonBytes('payload')} as bytes
      from ${tenant}.jobs j
     where ${indexed[variant.by]}
       and case
             when ${isWanted(variant)}
             then target_id is null
               or pg_try_advisory_xact_lock(hashtextextended(target_id, :advisoryKey::bigint))
             else false
           end
     order by priority, created_at, id
     limit :limit
       for update skip locked
  ),
  picked as (${pickWithinBytes('found')}
  ),
  leased as (${insertLease(tenant, kind, claimLease, 'picked')}
  ),
  claimed as (
    ${transition(name).update(tenant, {
      place: 'head',
      set: takeJob(name, claimLease),
      where: 'j.id = any(array(select id from picked))',
      returning: returningClaimed,
    })}
  ),
  recorded as (
    ${insertEvents(tenant, startEvent(name, claimLease))}
  )
  select
    ${claimedColumns(name === 'start')},
    s.found > (select count(*) from picked) as cut,
    ${variant.by === 'choice' ? 'false' : `s.found < :limit and s.found < (${countClaimable(variant)})`} as skipped
  from (select count(*) as found from found) as s
  left join claimed on true`;
});

/**
 * Selects the rows of `source` that one claim may take: the first, and more while their payloads fit. `source` is in
 * claim order, so the running sum needs no ORDER BY, which would sort again.
 */
export function pickWithinBytes(source: string): string {
  return `
    select id
      from (
        select id, bytes, sum(bytes) over (rows unbounded preceding) as total
          from ${source}
      ) as sized
     where total - bytes < ${claimBytes}`;
}

/** Assignments to a job `j` that gets a new holder, besides its status. */
export function takeJob(name: Start, { lease, owner }: LeaseValues): string {
  return `lease_id = ${lease},
           lease_owner = ${owner},
           ${name === 'start' ? 'attempt = j.attempt + 1,' : ''}
           ${name === 'start' ? 'started_at = now(),' : ''}
           progress = null,
           progress_message = null,
           cancel_requested = false,
           cancel_intent = null,
           cancel_detail = null,
           updated_at = now()`;
}

/** The events of the CTE `claimed`. */
export function startEvent(name: Start, { lease, owner }: LeaseValues): EventSelect {
  return transition(name).events('claimed', { actor: `'worker:' || ${owner}`, lease });
}

export function toClaimed(rows: ClaimedRow[], name: Start, leaseId: string, owner: string): Claimed {
  const jobs = toClaimedJobs(rows.filter(hasJob), { status: transition(name).to, leaseId, leaseOwner: owner });
  // RETURNING has no order; handlers start in claim order.
  jobs.sort(byClaimOrder);
  return { leaseId, jobs, isCut: rows[0]?.cut ?? false, hasSkipped: rows[0]?.skipped ?? false };
}

function hasJob({ id }: ClaimedRow): boolean {
  return id !== null;
}

function byClaimOrder(a: Job, b: Job): number {
  const byPriority = priorityRank(a.priority) - priorityRank(b.priority);
  if (byPriority !== 0) return byPriority;
  if (a.createdAt !== b.createdAt) return a.createdAt < b.createdAt ? -1 : 1;
  return a.id < b.id ? -1 : 1;
}

/** Advisory locks share one key space per database, so the schema seeds the hash of a target. */
function advisoryKey(schema: Schema): number {
  let hash = 5381;
  for (let i = 0; i < schema.length; i++) hash = (Math.imul(hash, 33) + schema.charCodeAt(i)) | 0;
  return hash;
}
