// The jobs around a job, drawn from left to right: those it waits for, and those that wait for it.
import { api, enc } from '../../data/api.ts';
import { box, cornerOf, layoutOf, type PlacedNode, pathOf, routeOf, sizeOf } from '../../data/jobs/graph-layout.ts';
import { useQuery } from '../../data/query.ts';
import { hrefOf } from '../../data/router.ts';
import type { JobGraph as Graph, Job } from '../../data/types.ts';
import { toneOf, wordOf } from '../jobs/status.tsx';
import { number } from '../time.tsx';

const maxTypeLength = 22;
const maxNodes = 60;

export function JobGraph({ job }: { job: Job }) {
  const graph = useQuery(
    `graph:${job.id}`,
    (signal) => api<Graph>(`/jobs/${enc(job.id)}/graph?limit=${maxNodes}`, { signal }),
    { on: (event) => event.job_id !== null && event.to !== null && event.from !== event.to },
  );
  if (graph.data === undefined || graph.data.edges.length === 0) return null;
  const layout = layoutOf(graph.data);
  const { nodes } = layout;
  const places = new Map(nodes.map((place) => [place.node.id, place]));
  const { width, height } = sizeOf(layout);
  return (
    <section class="card" aria-label="Graph">
      <h2>Graph</h2>
      <div class="graph-frame">
        <svg
          class="job-graph"
          width={width}
          height={height}
          viewBox={`0 0 ${width} ${height}`}
          role="img"
          aria-label={`${nodes.length} connected jobs; each is to the right of those it waits for`}
        >
          {graph.data.edges.map(({ job_id, after_id, state, kind }) => {
            const [from, to] = [places.get(after_id), places.get(job_id)];
            if (from === undefined || to === undefined) return null;
            const d = pathOf(routeOf(layout, from, to));
            return <path key={`${after_id} ${job_id}`} class={`edge edge-${state} edge-${kind}`} d={d} />;
          })}
          {nodes.map((place) => (
            <Node key={place.node.id} place={place} isOwn={place.node.id === job.id} />
          ))}
        </svg>
      </div>
      {graph.data.truncated && (
        <p class="muted small">The {number(maxNodes)} nearest jobs of a larger graph are shown.</p>
      )}
    </section>
  );
}

function Node({ place, isOwn }: { place: PlacedNode; isOwn: boolean }) {
  const { id, type, status } = place.node;
  const { x, y } = cornerOf(place);
  const name = type ?? 'deleted';
  const word = status === null ? 'Deleted' : wordOf(status);
  return (
    <a href={hrefOf(`/jobs/${id}`)} aria-label={`${name}, ${word}`} aria-current={isOwn ? 'page' : undefined}>
      <title>{`${name} ${id}: ${word}`}</title>
      <g class={`node tone-${status === null ? 'off' : toneOf(status)}${isOwn ? ' node-own' : ''}`}>
        <rect x={x} y={y} width={box.width} height={box.height} rx="6" />
        <text class="node-type" x={x + 10} y={y + 17}>
          {name.length > maxTypeLength ? `${name.slice(0, maxTypeLength - 1)}…` : name}
        </text>
        <text class="node-status" x={x + 10} y={y + 32}>
          {word}
        </text>
      </g>
    </a>
  );
}
