// Places the jobs of a graph in columns: each to the right of all that it waits for.
import type { JobGraph } from '../types.ts';

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

export function layoutOf({ nodes, edges }: JobGraph): GraphLayout {
  const before = new Map<string, string[]>();
  for (const { job_id, after_id } of edges) before.set(job_id, [...(before.get(job_id) ?? []), after_id]);
  const columns = new Map<string, number>();
  // A cut graph has no circles either; the mark keeps a broken one from looping.
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
