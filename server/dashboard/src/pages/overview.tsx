// What needs a person first, then how it goes.
import { useMemo } from 'preact/hooks';
import { api, queryOf } from '../data/api.ts';
import { useTitle } from '../data/holds.ts';
import { type Query, useQuery } from '../data/query.ts';
import { hrefOf, setSearch, usePlace } from '../data/router.ts';
import { may } from '../data/session.ts';
import type { Attention } from '../data/types.ts';
import { BulkButton } from '../parts/bulk.tsx';
import { Empty, Loaded } from '../parts/feedback.tsx';
import { HoldCard } from '../parts/hold-card.tsx';
import { Icon } from '../parts/icons.tsx';
import { type Line, Plot } from '../parts/plot.tsx';
import { Ago, compact, number, span } from '../parts/time.tsx';

export function OverviewPage() {
  useTitle('Overview');
  const attention = useQuery('attention', (signal) => api<Attention>('/attention', { signal }), {
    on: (event) => event.to !== event.from || event.type.startsWith('schedule') || event.type.startsWith('target'),
  });
  return (
    <>
      <header class="page-head">
        <h1>Needs attention</h1>
        <Loadline attention={attention} />
      </header>
      <Loaded query={attention} rows={3}>
        {(data) => <AttentionView data={data} onChange={attention.refresh} />}
      </Loaded>
      <Numbers />
    </>
  );
}

function Loadline({ attention }: { attention: Query<Attention> }) {
  const holds = attention.data?.holds;
  if (!holds || holds.paused + holds.error === 0) return null;
  const drained = holds.newest.filter((each) => each.job.hold?.kind === 'drain').length;
  return (
    <div class="page-actions">
      <a class="button" href={hrefOf('/jobs?held=true')}>
        All {number(holds.paused + holds.error)} holds
      </a>
      {may('control') && drained > 1 && (
        <BulkButton
          action="resume"
          filter={{ hold_kind: 'drain' }}
          label="Resume what a drain paused"
          onDone={attention.refresh}
        />
      )}
      {may('control') && holds.error > 1 && (
        <BulkButton action="retry" filter={{ status: ['ERROR'] }} label="Retry all failed" onDone={attention.refresh} />
      )}
    </div>
  );
}

function AttentionView({ data, onChange }: { data: Attention; onChange: () => void }) {
  const { holds, failing_types: types, failed_schedules: schedules, disabled_webhooks: webhooks } = data;
  const others = types.length + schedules.length + webhooks.length > 0;
  if (holds.newest.length === 0 && !others) {
    return (
      <Empty icon="resolve" title="Nothing waits for a person">
        <p>
          Every lane runs on its own. A job that fails or is paused shows up here, with its reason and what waits behind
          it.
        </p>
      </Empty>
    );
  }
  const more = holds.paused + holds.error - holds.newest.length;
  return (
    <div class={others ? 'attention' : 'attention attention-single'}>
      <section class="stack" aria-label="Holds">
        {holds.newest.map((hold) => (
          <HoldCard key={hold.job.id} hold={hold} onChange={onChange} />
        ))}
        {holds.newest.length === 0 && <p class="muted">No job holds its lane.</p>}
        {more > 0 && (
          <a class="more-link" href={hrefOf('/jobs?held=true')}>
            {number(more)} more
          </a>
        )}
      </section>
      {others && (
        <aside class="stack" aria-label="Other problems">
          <FailingTypes types={types} onChange={onChange} />
          <FailedSchedules schedules={schedules} />
          <DisabledWebhooks webhooks={webhooks} />
        </aside>
      )}
    </div>
  );
}

function FailingTypes({ types, onChange }: { types: Attention['failing_types']; onChange: () => void }) {
  if (types.length === 0) return null;
  const max = Math.max(...types.map((each) => each.count));
  return (
    <section class="card">
      <h2>Failing types</h2>
      <ul class="plain-list">
        {types.map((each) => (
          <li key={each.type} class="failing">
            <div class="failing-top">
              <a href={hrefOf(`/jobs${queryOf({ status: 'ERROR', type: each.type })}`)}>
                <code>{each.type}</code>
              </a>
              <span class="failing-count">{number(each.count)}</span>
            </div>
            <div class="share" aria-hidden="true">
              <span style={{ width: `${(each.count / max) * 100}%` }} />
            </div>
            <p class="small">
              <span class="clip">{each.error?.message ?? 'No message'}</span>
              <a class="muted" href={hrefOf(`/jobs/${each.last_job_id}`)}>
                last <Ago at={each.last_at} />
              </a>
            </p>
            {may('control') && each.count > 1 && (
              <BulkButton
                action="retry"
                filter={{ status: ['ERROR'], type: each.type }}
                label="Retry all"
                onDone={onChange}
                quiet
              />
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

function FailedSchedules({ schedules }: { schedules: Attention['failed_schedules'] }) {
  if (schedules.length === 0) return null;
  return (
    <section class="card">
      <h2>Schedules that failed</h2>
      <ul class="plain-list">
        {schedules.map((each) => (
          <li key={each.id}>
            <a href={hrefOf('/schedules')}>{each.name}</a>{' '}
            <span class="muted small">
              <Ago at={each.at} />
            </span>
            <p class="small">{each.message}</p>
          </li>
        ))}
      </ul>
    </section>
  );
}

function DisabledWebhooks({ webhooks }: { webhooks: Attention['disabled_webhooks'] }) {
  if (webhooks.length === 0) return null;
  return (
    <section class="card">
      <h2>Webhooks disabled</h2>
      <ul class="plain-list">
        {webhooks.map((each) => (
          <li key={each.url}>
            <a class="clip" href={hrefOf('/webhooks?state=disabled')}>
              {each.url}
            </a>
            <p class="muted small">
              {each.deliveries} held back, <Ago at={each.since} prefix="since " />
            </p>
          </li>
        ))}
      </ul>
    </section>
  );
}

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
      { metric: 'queued', name: 'waiting', tone: 'wait' },
      { metric: 'running', name: 'running', tone: 'run' },
    ],
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

function Numbers() {
  const { search } = usePlace();
  const range: Range = (search.get('range') as Range) in ranges ? (search.get('range') as Range) : '1h';
  const snapshot = useQuery('snapshot', (signal) => api<Snapshot>('/stats/snapshot', { signal }), {
    on: (event) => event.to !== event.from,
  });
  return (
    <section class="numbers" aria-label="Numbers">
      <header class="section-head">
        <h2>How it goes</h2>
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
          <Figure name="Waiting" value={compact(snapshot.data.jobs.queued)} to="/jobs?status=QUEUED,PENDING" />
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
