// Ids of jobs on hold, oldest first: bulk resumes follow this order, so that the jobs of a lane run in the order in
// which they came.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { Statement, tenant } from '../../database/sql.ts';
import { firstUuid } from '../../kernel/limits.ts';
import { isOnHold } from '../model/states.ts';
import { conditionsOf, type JobFilter } from './filter.ts';
import type { IdPage } from './page-of-ids.ts';

/** The filter must name held statuses only. A whole operation reads the index of holds once, page after page. */
export async function pageOfHeldIds(
  db: Queryable,
  schema: Schema,
  filter: JobFilter,
  page: { limit: number; after?: string | undefined },
): Promise<IdPage> {
  const statuses = filter.statuses ?? [];
  if (!statuses.every(isOnHold)) throw new Error('only jobs on hold can be read in this order');
  if (statuses.length === 0) return { ids: [], next: undefined };
  const { text, parameters } = conditionsOf(filter);
  const select = (where: string) => `(
        select j.id
          from ${tenant}.jobs j
         where ${where}
           and j.id > :after::uuid${text}
         order by j.id
         limit :limit)`;
  // jobs_held_status_id, once per status; ids that are named are looked up by the primary key.
  const parts =
    filter.ids === undefined ? statuses.map((status) => select(`j.status = '${status}'`)) : [select('true')];
  const inOrder = new Statement(`
    select id
      from (${parts.join(' union all ')}) h
     order by id
     limit :limit`);
  const given = { ...parameters, after: page.after ?? firstUuid, limit: page.limit + 1 };
  const rows = await inOrder.query<{ id: string }>(db, schema, given);
  const ids = rows.slice(0, page.limit).map((row) => row.id);
  return { ids, next: rows.length > page.limit ? ids.at(-1) : undefined };
}
