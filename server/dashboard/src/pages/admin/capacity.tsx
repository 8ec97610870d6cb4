// Cost units: the capacity, the used units and the requested units.
import { api } from '../../data/api.ts';
import { useTitle } from '../../data/jobs/holds.ts';
import { type Limit, limitEntry } from '../../data/limits-and-usage.ts';
import { useQuery } from '../../data/query.ts';
import { hrefOf } from '../../data/router.ts';
import { Empty, Loaded } from '../../parts/feedback.tsx';
import { number } from '../../parts/time.tsx';
import { Usage } from '../../parts/usage.tsx';

interface Snapshot {
  capacity: { total: number | null; used: number; reserved: number };
  jobs: { queued: number; running: number };
  leases: { active: number };
}

interface Queues {
  queues: { queue: string; counts: Record<string, number> }[];
}

interface QueueUnits {
  queue: string;
  total: number | null;
  used: number;
  requested: number;
  waiting: number;
  reserved: number;
}

export function CapacityPage() {
  useTitle('Capacity');
  const on = (event: { to: string | null; from: string | null }) => event.to !== event.from;
  const snapshot = useQuery('capacity', (signal) => api<Snapshot>('/scheduler/stats/snapshot', { signal }), { on });
  const queues = useQuery('queues', (signal) => api<Queues>('/stats/queues?limit=200', { signal }), { on });
  const units = useQuery(
    'queue-units',
    (signal) => api<{ queues: QueueUnits[] }>('/scheduler/stats/capacity', { signal }),
    { on },
  );
  const limits = useQuery('limits', (signal) => api<{ limits: Limit[] }>('/limits', { signal }), { on });
  const unitsOf = (queue: string) => units.data?.queues.find((each) => each.queue === queue);
  return (
    <>
      <header class="page-head">
        <h1>Capacity</h1>
      </header>
      <Loaded query={snapshot}>{(data) => <Meter snapshot={data} />}</Loaded>
      <h2 class="section-title">Queues</h2>
      <Loaded query={queues}>
        {(data) =>
          data.queues.length === 0 ? (
            <Empty icon="capacity" title="No queues yet">
              <p>A queue appears with its first job.</p>
            </Empty>
          ) : (
            <div class="queue-grid">
              {data.queues.map(({ queue, counts }) => (
                <QueueCard key={queue} queue={queue} counts={counts} units={unitsOf(queue)} />
              ))}
            </div>
          )
        }
      </Loaded>
      <h2 class="section-title">Limits</h2>
      <Loaded query={limits}>
        {(data) =>
          data.limits.length === 0 ? (
            <p class="muted">
              No limits are set. <code>PUT /api/limits/&#123;name&#125;</code> bounds how often jobs start, or how many
              run at once.
            </p>
          ) : (
            <div class="queue-grid">
              {data.limits.map((limit) => (
                <LimitCard key={limit.name} limit={limit} />
              ))}
            </div>
          )
        }
      </Loaded>
      <Usage />
    </>
  );
}

function LimitCard({ limit }: { limit: Limit }) {
  const { name, type, queue, key, rate, per, concurrency, waiting, running, keys } = limit;
  const amounts = [
    ...(rate === null ? [] : [`${number(rate)} per ${per}`]),
    ...(concurrency === null ? [] : [`${number(concurrency)} at once`]),
  ];
  const counted = [type && `type ${type}`, queue && `queue ${queue}`, key && `by ${key}`].filter(Boolean);
  return (
    <article class="card">
      <h3>{name}</h3>
      <p class="small">
        <strong>{amounts.join(', ')}</strong> <span class="muted">{counted.join(', ') || 'all jobs'}</span>
      </p>
      <dl class="mini">
        <div>
          <dt>waiting</dt>
          <dd>{number(waiting)}</dd>
        </div>
        <div>
          <dt>running</dt>
          <dd>{number(running)}</dd>
        </div>
        {keys.slice(0, 5).flatMap((each) => {
          const entry = limitEntry(limit, each);
          if (entry === undefined) return [];
          return [
            <div key={each.value}>
              <dt>{entry.name}</dt>
              <dd>{entry.text}</dd>
            </div>,
          ];
        })}
      </dl>
    </article>
  );
}

function Meter({ snapshot: { capacity, jobs, leases } }: { snapshot: Snapshot }) {
  const { total, used, reserved } = capacity;
  const share = (units: number) => `${Math.min(100, total === null || total === 0 ? 0 : (units / total) * 100)}%`;
  return (
    <section class="card" aria-label="Cost units">
      {total === null ? (
        <p>
          No capacity is set: {number(used)} cost units are in use and nothing is denied. Set{' '}
          <code>capacity_units</code> or <code>queue_capacity_units</code> in the tenant's settings to bound them.
        </p>
      ) : (
        <>
          <p class="bulk-count">
            <strong>{number(used)}</strong> of {number(total)} cost units in use
            {reserved > 0 && <span class="muted">, {number(reserved)} kept for a waiting job</span>}
          </p>
          <div class="meter" role="img" aria-label={`${used} of ${total} units used, ${reserved} reserved`}>
            <span class="meter-used" style={{ width: share(used) }} />
            <span class="meter-reserved" style={{ width: share(reserved) }} />
          </div>
        </>
      )}
      <p class="muted small">
        {number(jobs.running)} running, {number(jobs.queued)} queued, {number(leases.active)} leases
      </p>
    </section>
  );
}

/** Used and requested units on one scale. Units beyond the capacity extend past it. */
function UnitsBar({ units: { total, used, requested, reserved, waiting } }: { units: QueueUnits }) {
  const scale = Math.max(total ?? 0, used + requested, 1);
  const width = (value: number) => `${(value / scale) * 100}%`;
  const bound = total === null ? 'no bound' : `bound ${number(total)}`;
  return (
    <div class="units">
      <p class="small">
        <strong>{number(used)}</strong> {total !== null && `of ${number(total)} `}units used,{' '}
        <strong>{number(requested)}</strong> requested
        {waiting > 0 && (
          <span class="muted">
            {' '}
            by {number(waiting)} {waiting === 1 ? 'job' : 'jobs'}
          </span>
        )}
        {reserved > 0 && <span class="muted">, {number(reserved)} kept for a waiting job</span>}
      </p>
      <div class="meter" role="img" aria-label={`${used} units used, ${requested} requested, ${bound}`}>
        <span class="meter-used" style={{ width: width(used) }} />
        <span class="meter-requested" style={{ width: width(requested) }} />
        {total !== null && <span class="meter-bound" style={{ left: width(total) }} />}
      </div>
    </div>
  );
}

const order = ['RUNNING', 'QUEUED', 'PENDING', 'WAITING', 'PAUSED', 'ERROR'] as const;
const tones: Record<(typeof order)[number], string> = {
  RUNNING: 'run',
  QUEUED: 'wait',
  PENDING: 'wait',
  WAITING: 'wait',
  PAUSED: 'hold',
  ERROR: 'fail',
};

interface QueueCardProps {
  queue: string;
  counts: Record<string, number>;
  units: QueueUnits | undefined;
}

function QueueCard({ queue, counts, units }: QueueCardProps) {
  const live = order.reduce((sum, status) => sum + (counts[status] ?? 0), 0);
  return (
    <article class="card">
      <h3>
        <a href={hrefOf(`/jobs?queue=${encodeURIComponent(queue)}`)}>{queue}</a>
      </h3>
      <div class="stacked" aria-hidden="true">
        {order.map((status) => (
          <span
            key={status}
            class={`stacked-${tones[status]}`}
            style={{ width: live === 0 ? '0' : `${((counts[status] ?? 0) / live) * 100}%` }}
          />
        ))}
      </div>
      {units && <UnitsBar units={units} />}
      <dl class="mini">
        {order.map((status) => (
          <div key={status}>
            <dt>{status.toLowerCase()}</dt>
            <dd>{number(counts[status] ?? 0)}</dd>
          </div>
        ))}
      </dl>
    </article>
  );
}
