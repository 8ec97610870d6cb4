// Places the jobs of a graph in columns, each to the right of all jobs that it waits for, and routes the edges through
// the gaps between columns, so that none crosses a box.
import type { JobGraph } from '../types.ts';

export const box = { width: 168, height: 40 };
const gap = { column: 56, row: 14 };
// Wide enough for edges above the first row and below the last.
const margin = 12;

export interface PlacedNode {
  node: JobGraph['nodes'][number];
  column: number;
  row: number;
}

export interface GraphLayout {
  nodes: PlacedNode[];
  columns: number;
  rows: number;
}

export interface Point {
  x: number;
  y: number;
}

/** A curve through the gap between two columns. An edge goes straight from one to the next. */
export interface Hop {
  from: Point;
  to: Point;
}

export function layoutOf({ nodes, edges }: JobGraph): GraphLayout {
  const before = new Map<string, string[]>();
  for (const { job_id, after_id } of edges) before.set(job_id, [...(before.get(job_id) ?? []), after_id]);
  const columns = new Map<string, number>();
  // A graph has no cycles. The mark keeps a damaged one from looping.
  const columnOf = (id: string): number => {
    const known = columns.get(id);
    if (known !== undefined) return known;
    columns.set(id, 0);
    const column = Math.max(-1, ...(before.get(id) ?? []).map(columnOf)) + 1;
    columns.set(id, column);
    return column;
  };
  for (const { id } of nodes) columnOf(id);
  const rows = new Map<number, number>();
  const placed = nodes.map((node) => {
    const column = columns.get(node.id) ?? 0;
    const row = rows.get(column) ?? 0;
    rows.set(column, row + 1);
    return { node, column, row };
  });
  return { nodes: placed, columns: Math.max(0, ...rows.keys()) + 1, rows: Math.max(1, ...rows.values()) };
}

export function sizeOf({ columns, rows }: GraphLayout): { width: number; height: number } {
  return {
    width: columns * (box.width + gap.column) - gap.column + 2 * margin,
    height: rows * (box.height + gap.row) - gap.row + 2 * margin,
  };
}

/** The upper left corner of the job's box. */
export function cornerOf({ column, row }: Pick<PlacedNode, 'column' | 'row'>): Point {
  return { x: margin + column * (box.width + gap.column), y: margin + row * (box.height + gap.row) };
}

/** The path of the edge from a job to one that waits for it. */
export function routeOf({ nodes }: GraphLayout, from: PlacedNode, to: PlacedNode): Hop[] {
  const hops: Hop[] = [];
  const end = middleOf(to);
  let at = { x: cornerOf(from).x + box.width, y: middleOf(from) };
  for (let column = from.column + 1; column < to.column; column++) {
    const wanted = at.y + (end - at.y) / (to.column - column + 1);
    const boxes = nodes.filter((place) => place.column === column).length;
    const next = { x: cornerOf({ column, row: 0 }).x, y: freeAt(wanted, boxes) + trackOf(from) };
    hops.push({ from: at, to: next });
    at = { x: next.x + box.width, y: next.y };
  }
  return [...hops, { from: at, to: { x: cornerOf(to).x, y: end } }];
}

export function pathOf(hops: readonly Hop[]): string {
  const bend = gap.column / 2;
  return hops
    .map(({ from, to }, n) => {
      const curve = `C${from.x + bend},${from.y} ${to.x - bend},${to.y} ${to.x},${to.y}`;
      return `${n === 0 ? 'M' : 'L'}${from.x},${from.y} ${curve}`;
    })
    .join(' ');
}

function middleOf(place: PlacedNode): number {
  return cornerOf(place).y + box.height / 2;
}

/**
 * Returns the nearest height at which a column with this many boxes can be crossed: between two of them, above or below
 * all.
 */
function freeAt(wanted: number, boxes: number): number {
  const pitch = box.height + gap.row;
  const above = margin - gap.row / 2;
  return wanted > above + boxes * pitch ? wanted : above + Math.round((wanted - above) / pitch) * pitch;
}

/** Edges of different jobs do not overlap in a gap between rows. */
function trackOf({ row }: PlacedNode): number {
  return ((row % 3) - 1) * 4;
}
