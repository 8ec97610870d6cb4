// Deletes keys of unique jobs that no job holds any more.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { statusIn, terminalStatuses } from '../model/states.ts';

const freeKeysStatement = statement(`
  with free as (
    select u.type, u.key
      from ${tenant}.unique_keys u
     where u.used_at < now() - :days::float8 * interval '1 day'
       and (u.held_until is null or u.held_until < now())
       and not exists (
         select 1
           from ${tenant}.jobs j
          where j.id = u.job_id
            and not ${statusIn(terminalStatuses, 'j.status')}
            and (u.until = 'finished' or j.attempt = 0)
       )
     order by u.used_at
     limit :limit
       for update of u skip locked
  )
  delete from ${tenant}.unique_keys u
   using free f
   where u.type = f.type
     and u.key = f.key
  returning u.key`);

// Shorter than any use of a key by hand, long enough that keys which are used often stay.
const unusedKeyDays = 1;

/** Keys of unique jobs that nobody holds. */
export async function deleteFreeKeys(db: Queryable, schema: Schema, limit: number): Promise<number> {
  return (await freeKeysStatement.query(db, schema, { days: unusedKeyDays, limit })).length;
}
