import { expect, test } from 'vitest';
import {
  box,
  cornerOf,
  type Hop,
  layoutOf,
  type Point,
  pathOf,
  routeOf,
  sizeOf,
} from '../../../server/dashboard/src/data/jobs/graph-layout.ts';

const node = (id: string) => ({ id, type: 'a', status: null, target_id: null });
const edge = (after_id: string, job_id: string) => ({
  job_id,
  after_id,
  kind: 'after' as const,
  on_failure: 'hold',
  state: 'open',
});

test('each job is to the right of all jobs it waits for, and no two share a position', () => {
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

test('a graph with a cycle does not loop', () => {
  const { nodes } = layoutOf({
    nodes: ['a', 'b'].map(node),
    edges: [edge('a', 'b'), edge('b', 'a')],
    truncated: false,
  });
  expect(nodes).toHaveLength(2);
});

const names = Array.from('abcdefghij');
const allEdges = names.flatMap((after, n) => names.slice(n + 1).map((job) => edge(after, job)));
const shapes = {
  'an edge that skips a column': { nodes: 'abc', edges: [edge('a', 'b'), edge('b', 'c'), edge('a', 'c')] },
  'everything after everything': { nodes: names, edges: allEdges },
  'a wide column between two jobs': {
    nodes: names,
    edges: [...Array.from('bcdefghi', (id) => [edge('a', id), edge(id, 'j')]).flat(), edge('a', 'j')],
  },
  'edges from below and above': {
    nodes: names,
    edges: [
      edge('a', 'e'),
      edge('e', 'h'),
      ...Array.from('bcd', (id) => edge(id, 'h')),
      edge('d', 'f'),
      edge('f', 'g'),
    ],
  },
};

test.each(Object.entries(shapes))('no edge passes through the box of another job: %s', (_, { nodes, edges }) => {
  const layout = layoutOf({ nodes: Array.from(nodes).map(node), edges, truncated: false });
  const placeOf = (id: string) => layout.nodes.find((place) => place.node.id === id)!;
  const { width, height } = sizeOf(layout);
  for (const { after_id, job_id } of edges) {
    const hops = routeOf(layout, placeOf(after_id), placeOf(job_id));
    const line = pointsOf(hops);
    expect(line.every(({ x, y }) => x >= 0 && x <= width && y >= 0 && y <= height)).toBe(true);
    for (const place of layout.nodes) {
      if ([after_id, job_id].includes(place.node.id)) continue;
      const { x, y } = cornerOf(place);
      const inside = line.filter((p) => p.x >= x && p.x <= x + box.width && p.y >= y && p.y <= y + box.height);
      expect(inside, `${after_id} to ${job_id} through ${place.node.id}`).toEqual([]);
    }
  }
});

test('the path of an edge is its curves, joined by straight lines', () => {
  const hops = [
    { from: { x: 0, y: 0 }, to: { x: 56, y: 10 } },
    { from: { x: 224, y: 10 }, to: { x: 280, y: 20 } },
  ];
  expect(pathOf(hops)).toBe('M0,0 C28,0 28,10 56,10 L224,10 C252,10 252,20 280,20');
});

/** Many points of the line as it is drawn. */
function pointsOf(hops: readonly Hop[]): Point[] {
  const steps = Array.from({ length: 51 }, (_, n) => n / 50);
  return hops.flatMap(({ from, to }, n) => {
    const bend = (to.x - from.x) / 2;
    const curve = steps.map((t) => ({
      x: bezier(t, [from.x, from.x + bend, to.x - bend, to.x]),
      y: bezier(t, [from.y, from.y, to.y, to.y]),
    }));
    const next = hops[n + 1]?.from;
    const straight = next ? steps.map((t) => ({ x: to.x + (next.x - to.x) * t, y: to.y + (next.y - to.y) * t })) : [];
    return [...curve, ...straight];
  });
}

function bezier(t: number, [a, b, c, d]: [number, number, number, number]): number {
  const s = 1 - t;
  return s * s * s * a + 3 * s * s * t * b + 3 * s * t * t * c + t * t * t * d;
}
