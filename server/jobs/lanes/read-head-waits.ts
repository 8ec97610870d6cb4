// What the WAITING heads of lanes wait for, as people name it: the title of a question, how many jobs have not ended.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { noStep } from '../flows/dependencies.ts';
import type { Status } from '../model/states.ts';
import type { NamedWaiting } from '../model/waiting.ts';

interface Head {
  id: string;
  status: Status;
  waiting: NamedWaiting | null;
}

// A page has many heads, and each may have thousands of children.
const maxUnfinished = 1000;

const titlesStatement = statement(`
  select id, title
    from ${tenant}.questions
   where id = any(:ids::uuid[])`);

const unfinishedStatement = statement(`
  select h.id, u.unfinished
    from unnest(:ids::uuid[], :steps::text[]) as h(id, step)
   cross join lateral (
      select count(*)::int as unfinished
        from (
          select 1
            from ${tenant}.dependencies d
           where d.job_id = h.id
             and d.step = h.step
             and d.state in ('gated', 'open')
           limit :limit
        ) o
    ) u`);

/** The same heads. Costs nothing where none waits for a question or for jobs. */
export async function readHeadWaits<H extends Head>(db: Queryable, schema: Schema, heads: H[]): Promise<H[]> {
  const waits = heads.flatMap(({ id, status, waiting }) =>
    status === 'WAITING' && waiting !== null ? [{ id, waiting }] : [],
  );
  const titles = await readTitles(db, schema, waits);
  const unfinished = await readUnfinished(db, schema, waits);
  if (titles.size === 0 && unfinished.size === 0) return heads;
  return heads.map((head) => {
    if (head.waiting === null) return head;
    const title = titles.get(head.waiting.question ?? '');
    const count = unfinished.get(head.id);
    return {
      ...head,
      waiting: {
        ...head.waiting,
        ...(title !== undefined && { title }),
        ...(count !== undefined && count <= maxUnfinished && { unfinished: count }),
      },
    };
  });
}

type Waits = { id: string; waiting: NamedWaiting }[];

async function readTitles(db: Queryable, schema: Schema, waits: Waits): Promise<Map<string, string>> {
  const ids = waits.flatMap(({ waiting: { question } }) => (question === undefined ? [] : [question]));
  if (ids.length === 0) return new Map();
  const rows = await titlesStatement.query<{ id: string; title: string }>(db, schema, { ids });
  return new Map(rows.map(({ id, title }) => [id, title]));
}

async function readUnfinished(db: Queryable, schema: Schema, waits: Waits): Promise<Map<string, number>> {
  const parents = waits.filter(({ waiting: { kind } }) => kind === 'children' || kind === 'after');
  if (parents.length === 0) return new Map();
  const rows = await unfinishedStatement.query<{ id: string; unfinished: number }>(db, schema, {
    ids: parents.map(({ id }) => id),
    steps: parents.map(({ waiting: { kind, step } }) => (kind === 'children' ? (step ?? noStep) : noStep)),
    limit: maxUnfinished + 1,
  });
  return new Map(rows.map(({ id, unfinished }) => [id, unfinished]));
}
