// The filter of job lists and bulk operations. It finds unfinished jobs without scanning the history. There is no index
// on status, because every change of a job would rewrite it; the partial indexes that the engine needs anyway find
// unfinished jobs.

import { type Parameters, tenant } from '../../database/sql.ts';
import { isAtGate, isClaimable } from '../../database/tables/tenant-jobs.ts';
import { holdKindSql } from '../model/hold.ts';
import { type HoldKind, type Priority, priorityRank } from '../model/job.ts';
import { heldStatuses, ownedStatuses, type Status, unstartedStatuses } from '../model/states.ts';

export interface JobFilter {
  /** Only jobs with these ids. */
  ids?: readonly string[] | undefined;
  statuses?: readonly Status[] | undefined;
  type?: string | undefined;
  queue?: string | undefined;
  targetId?: string | undefined;
  priority?: Priority | undefined;
  holdKind?: HoldKind | undefined;
  createdAfter?: string | undefined;
  createdBefore?: string | undefined;
  parentId?: string | undefined;
  /** Matches a part of the type or the target, or the beginning of the id. */
  search?: string | undefined;
  /** Compares the value at a path of the payload, as text. */
  payload?: { path: readonly string[]; value: string } | undefined;
  /** Only failed jobs with, or without, one of these codes. */
  errorCodes?: readonly string[] | undefined;
  otherErrorCodes?: readonly string[] | undefined;
}

export interface Conditions {
  /** Conditions as `and …` over `j`, with a parameter for each value. */
  text: string;
  parameters: Parameters;
}

/** All conditions of the filter. */
export function conditionsOf(filter: JobFilter): Conditions {
  const { payload, priority, search, ...same } = filter;
  const given: Parameters = {
    ...same,
    priority: priority && priorityRank(priority),
    search: search?.toLowerCase(),
    payloadValue: payload?.value,
  };
  const names = Object.keys(conditions).filter((name) => given[name] !== undefined);
  return {
    text: names.map((name) => `\n        and ${conditions[name]}`).join(''),
    parameters: { ...Object.fromEntries(names.map((name) => [name, given[name]])), payloadPath: payload?.path },
  };
}

/** The values by name of the parameter. */
const conditions: Readonly<Record<string, string>> = {
  ids: 'j.id = any(:ids::uuid[])',
  statuses: 'j.status = any(:statuses::text[])',
  type: 'j.type = :type',
  queue: 'j.queue = :queue',
  targetId: 'j.target_id = :targetId',
  priority: 'j.priority = :priority::smallint',
  holdKind: `${holdKindSql} = :holdKind`,
  createdAfter: 'j.created_at > :createdAfter::timestamptz',
  createdBefore: 'j.created_at < :createdBefore::timestamptz',
  parentId: 'j.parent_id = :parentId::uuid',
  search: `(position(:search in lower(j.type)) > 0
          or position(:search in lower(j.target_id)) > 0
          or starts_with(j.id::text, :search))`,
  payloadValue: 'j.payload #>> :payloadPath::text[] = :payloadValue',
  errorCodes: `j.error ->> 'code' = any(:errorCodes::text[])`,
  otherErrorCodes: `coalesce(j.error ->> 'code', '') <> all(:otherErrorCodes::text[])`,
};

const unfinished: readonly Status[] = [...unstartedStatuses, ...ownedStatuses, 'WAITING', ...heldStatuses];

export function areUnfinished(statuses: readonly Status[] | undefined): statuses is readonly Status[] {
  return statuses?.every((status) => unfinished.includes(status)) ?? false;
}

/**
 * SQL `select id …` of all jobs in these unfinished statuses (and perhaps a few more), through partial indexes only.
 * Each part stops after `:max` rows.
 */
export function unfinishedIds(statuses: readonly Status[]): string {
  const from = (where: string) => `(select id from ${tenant}.jobs where ${where} limit :max)`;
  const parts: string[] = [];
  if (statuses.includes('QUEUED')) {
    parts.push(from(isClaimable('daemon')));
    parts.push(from(isClaimable('remoteWorker')));
    parts.push(from(isAtGate()));
    parts.push(from(`lane_rank is not null and status = 'QUEUED'`));
  }
  if (statuses.includes('PENDING')) parts.push(from(`status = 'PENDING'`));
  if (statuses.includes('WAITING')) parts.push(from(`status = 'WAITING'`));
  if (statuses.includes('PAUSED')) parts.push(from(`status = 'PAUSED'`));
  if (statuses.includes('ERROR')) parts.push(from(`status = 'ERROR'`));
  if (statuses.some((status) => ownedStatuses.includes(status))) {
    // Active leases are few and name the owned jobs.
    parts.push(`(select unnest(job_ids) as id from ${tenant}.leases where state = 'ACTIVE' limit :max)`);
  }
  return parts.join('\n         union all\n         ');
}
