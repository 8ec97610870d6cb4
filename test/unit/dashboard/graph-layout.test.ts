import { expect, test } from 'vitest';
import { layoutOf } from '../../../server/dashboard/src/data/jobs/graph-layout.ts';

const node = (id: string) => ({ id, type: 'a', status: null, target_id: null });
const edge = (after_id: string, job_id: string) => ({
  job_id,
  after_id,
  kind: 'after' as const,
  on_failure: 'hold',
  state: 'open',
});

test('each job is to the right of all that it waits for, and no two share a place', () => {
  const { nodes, columns, rows } = layoutOf({
    nodes: ['d', 'b', 'c', 'a', 'e'].map(node),
    edges: [edge('a', 'b'), edge('a', 'c'), edge('b', 'c'), edge('c', 'd'), edge('b', 'd')],
    truncated: false,
  });
  const columnOf = Object.fromEntries(nodes.map((place) => [place.node.id, place.column]));
  expect(columnOf).toEqual({ a: 0, b: 1, c: 2, d: 3, e: 0 });
  expect([columns, rows]).toEqual([4, 2]);
  expect(new Set(nodes.map(({ column, row }) => `${column} ${row}`)).size).toBe(nodes.length);
});

test('a graph that is broken does not loop', () => {
  const { nodes } = layoutOf({
    nodes: ['a', 'b'].map(node),
    edges: [edge('a', 'b'), edge('b', 'a')],
    truncated: false,
  });
  expect(nodes).toHaveLength(2);
});
