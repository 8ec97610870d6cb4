// The claim of a daemon for a tenant with capacities. It takes only jobs that fit, decided under the same locks as
// remote leases, strictly in claim order: the first job that does not fit reserves its units, so that smaller jobs
// after it cannot starve it.

import type { Database, Queryable } from '../database/database.ts';
import type { Schema } from '../database/identifiers.ts';
import { claimBytes, jsonBytes } from '../database/reads/bounded-reads.ts';
import { statement, tenant } from '../database/sql.ts';
import { retryConflicts } from '../database/sql-errors.ts';
import { isClaimable } from '../database/tables/tenant-jobs.ts';
import { type Claimed, type ClaimRequest, claimChosenJobs, claimJobs } from '../jobs/claim/claim.ts';
import { CapacityLedger } from './capacity.ts';

export async function claimWithinCapacity(db: Database, schema: Schema, request: ClaimRequest): Promise<Claimed> {
  return retryConflicts(() =>
    db.transaction(async (tx) => {
      const ledger = await CapacityLedger.lock(tx, schema);
      if (ledger.unlimited) return claimJobs(tx, schema, request);
      const { chosen, hasSkipped } = await choose(tx, schema, ledger, request);
      return { ...(await claimChosenJobs(tx, schema, request, chosen)), hasSkipped };
    }),
  );
}

interface Choice {
  chosen: string[];
  /** Other transactions had locked some of the jobs; see `Claimed`. */
  hasSkipped: boolean;
}

async function choose(tx: Queryable, schema: Schema, ledger: CapacityLedger, request: ClaimRequest): Promise<Choice> {
  const chosen: string[] = [];
  const full: string[] = [];
  let bytes = 0;
  let hasSkipped = false;
  // Each pass but the last fills a queue, so there are at most as many passes as queues with a capacity.
  for (;;) {
    const queuesFull = full.length;
    const parameters = candidateParameters(ledger, request, chosen, full);
    const candidates = await candidatesStatement.query<Candidate>(tx, schema, parameters);
    if (candidates.length < parameters.limit) {
      const [visible] = await countStatement.query<{ count: number }>(tx, schema, parameters);
      hasSkipped ||= (visible?.count ?? 0) > candidates.length;
    }
    for (const { id, queue, priority, cost_units, payload_bytes } of candidates) {
      if (full.includes(queue)) continue;
      if (bytes >= claimBytes) return { chosen, hasSkipped };
      const demand = { jobId: id, queue, priorityRank: priority, costUnits: cost_units };
      const shortage = ledger.shortage(demand);
      if (shortage === undefined) {
        await ledger.take(demand);
        chosen.push(id);
        bytes += payload_bytes;
        continue;
      }
      await ledger.reserve(demand);
      if (shortage.queue === '') return { chosen, hasSkipped };
      full.push(queue);
    }
    if (full.length === queuesFull || chosen.length >= request.limit) return { chosen, hasSkipped };
  }
}

interface Candidate {
  id: string;
  queue: string;
  priority: number;
  cost_units: number;
  payload_bytes: number;
}

const isCandidate = `${isClaimable('daemon')}
     and (:types::text[] is null or type = any(:types::text[]))
     and id <> all(:chosen::uuid[])
     and queue <> all(:full::text[])
     and not exists (
           select 1
             from unnest(:queues::text[], :totals::int[]) as c(queue, total)
            where (c.queue = '' or c.queue = j.queue)
              and j.cost_units > c.total)`;

const candidatesStatement = statement(`
  select id, queue, priority, cost_units, ${jsonBytes('payload')} as payload_bytes
    from ${tenant}.jobs j
   where ${isCandidate}
   order by priority, created_at, id
   limit :limit
     for update of j skip locked`);

/** How many candidates the snapshot shows, also those that are locked. */
const countStatement = statement(`
  select count(*)::int as count
    from (
      select 1
        from ${tenant}.jobs j
       where ${isCandidate}
       order by priority, created_at, id
       limit :limit
    ) as visible`);

function candidateParameters(ledger: CapacityLedger, request: ClaimRequest, chosen: string[], full: string[]) {
  const totals = ledger.totals;
  return {
    limit: request.limit - chosen.length,
    types: request.types ?? null,
    chosen,
    full,
    queues: totals.map((t) => t.queue),
    totals: totals.map((t) => t.total),
  };
}
