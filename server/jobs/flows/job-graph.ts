// The graph around a job: the jobs that it waits for or has waited for, the jobs that wait for it, and so on. The graph
// is bounded; of a large one the nearest jobs are read.
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import type { Status } from '../model/states.ts';
import { noStep } from './dependencies.ts';

interface GraphNode {
  id: string;
  /** Null if the job was deleted. */
  type: string | null;
  status: Status | null;
  targetId: string | null;
}

interface GraphEdge {
  jobId: string;
  afterId: string;
  kind: 'after' | 'child';
  onFailure: string;
  state: string;
}

interface Graph {
  nodes: GraphNode[];
  edges: GraphEdge[];
  /** There are more jobs than the limit. */
  truncated: boolean;
}

// The limit stops the recursion, because a recursive query returns rows as it finds them.
const walkStatement = statement(`
  with recursive walk(id) as (
    select :id::uuid
    union
    select n.id
      from walk w
     cross join lateral (
       select d.after_id as id
         from ${tenant}.dependencies d
        where d.job_id = w.id
       union all
       select d.job_id
         from ${tenant}.dependencies d
        where d.after_id = w.id
     ) n
  )
  select id
    from walk
   limit :limit`);

const nodesStatement = statement(`
  select w.id, j.type, j.status, j.target_id as "targetId"
    from unnest(:ids::uuid[]) with ordinality as w(id, place)
    left join ${tenant}.jobs j on j.id = w.id
   order by w.place`);

const edgesStatement = statement(`
  select d.job_id as "jobId", d.after_id as "afterId", case when d.step = '${noStep}' then 'after' else 'child' end as kind,
         d.on_failure as "onFailure", d.state
    from ${tenant}.dependencies d
   where d.job_id = any(:ids::uuid[])
     and d.after_id = any(:ids::uuid[])
   order by d.job_id, d.position
   limit :limit`);

const edgesPerNode = 10;

export async function readGraph(db: Queryable, schema: Schema, id: string, limit: number): Promise<Graph> {
  const walked = await walkStatement.query<{ id: string }>(db, schema, { id, limit: limit + 1 });
  const ids = walked.slice(0, limit).map((row) => row.id);
  const nodes = await nodesStatement.query<GraphNode>(db, schema, { ids });
  const maxEdges = limit * edgesPerNode;
  const edges = await edgesStatement.query<GraphEdge>(db, schema, { ids, limit: maxEdges + 1 });
  return { nodes, edges: edges.slice(0, maxEdges), truncated: walked.length > limit || edges.length > maxEdges };
}
