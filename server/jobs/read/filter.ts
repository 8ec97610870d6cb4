// The filter of job lists and bulk operations, and how unfinished jobs are found without scanning the history. There is
// no index on status, because every change of a job would rewrite it: unfinished jobs are found through the partial
// indexes that the engine needs anyway.
import type { Schema } from '../../database/identifiers.ts';
import { holdKindSql } from '../model/hold.ts';
import { type HoldKind, type Priority, priorityRank } from '../model/job.ts';
import { heldStatuses, ownedStatuses, type Status, waitingStatuses } from '../model/states.ts';

export interface JobFilter {
  /** Only these. */
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
  /** Part of the type or the target, or the beginning of the id. */
  search?: string | undefined;
  /** The value at a path of the payload, as text. */
  payload?: { path: readonly string[]; value: string } | undefined;
  /** Of failed jobs: those with, or without, one of these codes. */
  errorCodes?: readonly string[] | undefined;
  otherErrorCodes?: readonly string[] | undefined;
}

export interface Conditions {
  /** `and …` over `j`. */
  text: string;
  values: unknown[];
}

/** All conditions of the filter. Parameters are numbered from `first`. */
export function conditionsOf(filter: JobFilter, first: number): Conditions {
  const values: unknown[] = [];
  const parts: string[] = [];
  const add = (part: (place: string) => string, value: unknown) => {
    if (value === undefined) return;
    values.push(value);
    parts.push(` and ${part(`$${first + values.length - 1}`)}`);
  };
  add((p) => `j.id = any(${p}::uuid[])`, filter.ids);
  add((p) => `j.status = any(${p}::text[])`, filter.statuses);
  add((p) => `j.type = ${p}`, filter.type);
  add((p) => `j.queue = ${p}`, filter.queue);
  add((p) => `j.target_id = ${p}`, filter.targetId);
  add((p) => `j.priority = ${p}::smallint`, filter.priority && priorityRank(filter.priority));
  add((p) => `${holdKindSql} = ${p}`, filter.holdKind);
  add((p) => `j.created_at > ${p}::timestamptz`, filter.createdAfter);
  add((p) => `j.created_at < ${p}::timestamptz`, filter.createdBefore);
  add((p) => `j.parent_id = ${p}::uuid`, filter.parentId);
  add(
    (p) =>
      `(position(${p} in lower(j.type)) > 0 or position(${p} in lower(j.target_id)) > 0 or starts_with(j.id::text, ${p}))`,
    filter.search?.toLowerCase(),
  );
  if (filter.payload !== undefined) {
    const { path, value } = filter.payload;
    values.push(path, value);
    parts.push(` and j.payload #>> $${first + values.length - 2}::text[] = $${first + values.length - 1}`);
  }
  add((p) => `j.error ->> 'code' = any(${p}::text[])`, filter.errorCodes);
  add((p) => `coalesce(j.error ->> 'code', '') <> all(${p}::text[])`, filter.otherErrorCodes);
  return { text: parts.join(''), values };
}

const unfinished: readonly Status[] = [...waitingStatuses, ...ownedStatuses, ...heldStatuses];

export function areUnfinished(statuses: readonly Status[] | undefined): statuses is readonly Status[] {
  return statuses?.every((status) => unfinished.includes(status)) ?? false;
}

/** `select id …` of all jobs in these unfinished statuses (and perhaps a few more), through partial indexes only. Each part stops after `max` rows. */
export function unfinishedIds(schema: Schema, statuses: readonly Status[], max: string): string {
  const from = (where: string) => `(select id from ${schema}.jobs where ${where} limit ${max})`;
  const parts: string[] = [];
  if (statuses.includes('QUEUED')) {
    parts.push(from(`status = 'QUEUED' and lane_head and not remote`));
    parts.push(from(`status = 'QUEUED' and lane_head and remote`));
    parts.push(from(`lane_rank is not null and status = 'QUEUED'`));
  }
  if (statuses.includes('PENDING')) parts.push(from(`status = 'PENDING'`));
  if (statuses.includes('PAUSED')) parts.push(from(`status = 'PAUSED'`));
  if (statuses.includes('ERROR')) parts.push(from(`status = 'ERROR'`));
  if (statuses.some((status) => ownedStatuses.includes(status))) {
    // Owned jobs are named by the active leases, which are few.
    parts.push(`(select unnest(job_ids) as id from ${schema}.leases where state = 'ACTIVE' limit ${max})`);
  }
  return parts.join(' union all ');
}
