// The key figures and plots of the overview.
import { useMemo } from 'preact/hooks';
import { api, queryOf } from '../data/api.ts';
import { useQuery } from '../data/query.ts';
import { hrefOf, setSearch, usePlace } from '../data/router.ts';
import { Icon } from './icons.tsx';
import { type Line, Plot } from './plot.tsx';
import { compact, span } from './time.tsx';

const ranges = { '1h': '1m', '24h': '15m', '7d': '2h' } as const;
type Range = keyof typeof ranges;

interface Series {
  points: { ts: string; value: number }[];
}

interface PlotDefinition {
  title: string;
  to: string;
  unit?: 'seconds';
  lines: { metric: string; name: string; tone: Line['tone'] }[];
  sum?: boolean;
}

const plots: readonly PlotDefinition[] = [
  {
    title: 'Throughput',
    to: '/jobs?status=SUCCESS',
    sum: true,
    lines: [
      { metric: 'enqueued', name: 'enqueued', tone: 'wait' },
      { metric: 'succeeded', name: 'succeeded', tone: 'done' },
    ],
  },
  {
    title: 'Failures',
    to: '/jobs?status=ERROR',
    sum: true,
    lines: [{ metric: 'failed', name: 'failed', tone: 'fail' }],
  },
  {
    title: 'Depth',
    to: '/jobs?status=QUEUED,PENDING',
    lines: [
      { metric: 'queued', name: 'queued', tone: 'wait' },
      { metric: 'running', name: 'running', tone: 'run' },
    ],
  },
  {
    title: 'Oldest claimable',
    to: '/jobs?status=QUEUED',
    unit: 'seconds',
    lines: [{ metric: 'oldest_age', name: 'at most', tone: 'hold' }],
  },
  {
    title: 'Wait',
    to: '/jobs?status=QUEUED',
    unit: 'seconds',
    lines: [
      { metric: 'wait_p95', name: 'p95', tone: 'hold' },
      { metric: 'wait_p50', name: 'p50', tone: 'run' },
    ],
  },
  {
    title: 'Run time',
    to: '/jobs?status=RUNNING',
    unit: 'seconds',
    lines: [
      { metric: 'run_p95', name: 'p95', tone: 'hold' },
      { metric: 'run_p50', name: 'p50', tone: 'run' },
    ],
  },
  {
    title: 'Leases lost',
    to: '/workers',
    sum: true,
    lines: [{ metric: 'leases_expired', name: 'lost', tone: 'fail' }],
  },
];

interface Snapshot {
  jobs: { queued: number; running: number; failed_last_24h: number };
  leases: { active: number; expired_last_24h: number };
  oldest_queued_seconds: number;
}

export function Numbers() {
  const { search } = usePlace();
  const range: Range = (search.get('range') as Range) in ranges ? (search.get('range') as Range) : '1h';
  const snapshot = useQuery('snapshot', (signal) => api<Snapshot>('/stats/snapshot', { signal }), {
    on: (event) => event.to !== event.from,
  });
  const counts = useQuery('counts', (signal) => api<{ counts: Record<string, number> }>('/stats/jobs', { signal }), {
    on: (event) => event.to !== event.from,
  });
  const waiting = counts.data?.counts.WAITING;
  return (
    <section class="numbers" aria-label="Numbers">
      <header class="section-head">
        <h2>Activity</h2>
        <div class="segments" role="group" aria-label="Range">
          {Object.keys(ranges).map((each) => (
            <button
              key={each}
              type="button"
              aria-pressed={each === range}
              onClick={() => setSearch({ range: each === '1h' ? undefined : each })}
            >
              {each}
            </button>
          ))}
        </div>
      </header>
      {snapshot.data && (
        <dl class="figures">
          <Figure name="Running" value={compact(snapshot.data.jobs.running)} to="/jobs?status=RUNNING" />
          <Figure name="Queued" value={compact(snapshot.data.jobs.queued)} to="/jobs?status=QUEUED,PENDING" />
          <Figure name="Waiting" value={waiting === undefined ? '–' : compact(waiting)} to="/jobs?status=WAITING" />
          <Figure
            name="Oldest claimable"
            value={span(snapshot.data.oldest_queued_seconds * 1000)}
            to="/jobs?status=QUEUED"
          />
          <Figure name="Failed, 24 h" value={compact(snapshot.data.jobs.failed_last_24h)} to="/jobs?status=ERROR" />
          <Figure name="Leases lost, 24 h" value={compact(snapshot.data.leases.expired_last_24h)} to="/workers" />
        </dl>
      )}
      <div class="plots">
        {plots.map((plot) => (
          <PlotCard key={plot.title} plot={plot} range={range} />
        ))}
      </div>
    </section>
  );
}

function Figure({ name, value, to }: { name: string; value: string; to: string }) {
  return (
    <div class="figure">
      <dt>{name}</dt>
      <dd>
        <a href={hrefOf(to)}>{value}</a>
      </dd>
    </div>
  );
}

// Plots move slowly: once a minute is their own resolution.
const plotEveryMs = 60_000;

function PlotCard({ plot, range }: { plot: PlotDefinition; range: Range }) {
  const series = useQuery(
    `plot:${plot.title}:${range}`,
    (signal) =>
      Promise.all(
        plot.lines.map(({ metric }) =>
          api<Series>(`/stats/timeseries${queryOf({ metric, range, bucket: ranges[range] })}`, { signal }),
        ),
      ),
    { everyMs: plotEveryMs },
  );
  const drawn = useMemo(() => {
    const [first] = series.data ?? [];
    if (!first || !series.data) return undefined;
    return {
      times: first.points.map((point) => Date.parse(point.ts) / 1000),
      lines: plot.lines.map(
        (line, n): Line => ({
          name: line.name,
          tone: line.tone,
          values: series.data?.[n]?.points.map((point) => point.value) ?? [],
        }),
      ),
    };
  }, [series.data]);
  const rest = drawn?.lines.map((line) => `${line.name} ${summary(line.values, plot)}`).join(', ') ?? '';
  return (
    <figure class="card plot-card">
      <figcaption>
        <a href={hrefOf(plot.to)}>
          {plot.title} <Icon name="chevron" size={12} />
        </a>
        <span class="plot-value" data-rest={rest}>
          {rest}
        </span>
      </figcaption>
      {drawn ? (
        <Plot label={plot.title} times={drawn.times} lines={drawn.lines} {...(plot.unit && { unit: plot.unit })} />
      ) : (
        <div class="plot" />
      )}
    </figure>
  );
}

function summary(values: number[], { sum, unit }: PlotDefinition): string {
  if (unit === 'seconds') return span(Math.max(0, ...values) * 1000);
  return compact(sum ? values.reduce((total, value) => total + value, 0) : (values.at(-1) ?? 0));
}
