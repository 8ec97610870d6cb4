// Budgets with what was used of them today, and what jobs used in the last 30 days.
import { api } from '../data/api.ts';
import { sumUsage, type UsageRow } from '../data/limits-and-usage.ts';
import { useQuery } from '../data/query.ts';
import { Loaded } from './feedback.tsx';
import { number } from './time.tsx';

interface Budget {
  name: string;
  unit: string;
  limit: number;
  per: 'job' | 'day' | 'target_day';
  type: string | null;
  used: number;
}

const periods = { job: 'for each job', day: 'a day', target_day: 'a day for each target' };

export function Usage() {
  const on = (event: { type: string }) => event.type === 'job.usage';
  const budgets = useQuery('budgets', (signal) => api<{ budgets: Budget[] }>('/budgets', { signal }), { on });
  const usage = useQuery('usage', (signal) => api<{ usage: UsageRow[] }>('/stats/usage?days=30', { signal }), { on });
  return (
    <>
      <h2 class="section-title">Budgets</h2>
      <Loaded query={budgets}>
        {(data) =>
          data.budgets.length === 0 ? (
            <p class="muted">
              No budgets are set. <code>PUT /api/budgets/&#123;name&#125;</code> bounds what jobs may use of a unit.
            </p>
          ) : (
            <div class="queue-grid">
              {data.budgets.map((budget) => (
                <BudgetCard key={budget.name} budget={budget} />
              ))}
            </div>
          )
        }
      </Loaded>
      <h2 class="section-title">Used in the last 30 days</h2>
      <Loaded query={usage}>
        {(data) =>
          data.usage.length === 0 ? (
            <p class="muted">No job has reported usage.</p>
          ) : (
            <div class="queue-grid">
              {sumUsage(data.usage, new Date()).map(({ unit, today, total, types }) => (
                <article class="card" key={unit}>
                  <h3>{unit}</h3>
                  <p class="small">
                    <strong>{number(total)}</strong> <span class="muted">{number(today)} today</span>
                  </p>
                  <dl class="mini">
                    {types.map(({ type, used }) => (
                      <div key={type}>
                        <dt>{type}</dt>
                        <dd>{number(used)}</dd>
                      </div>
                    ))}
                  </dl>
                </article>
              ))}
            </div>
          )
        }
      </Loaded>
    </>
  );
}

function BudgetCard({ budget: { name, unit, limit, per, type, used } }: { budget: Budget }) {
  const share = `${Math.min(100, limit === 0 ? 100 : (used / limit) * 100)}%`;
  return (
    <article class="card">
      <h3>{name}</h3>
      <p class="small">
        <strong>
          {number(limit)} {unit} {periods[per]}
        </strong>{' '}
        <span class="muted">{type === null ? 'all jobs' : `type ${type}`}</span>
      </p>
      {per === 'day' && (
        <>
          <div class="meter" role="img" aria-label={`${used} of ${limit} ${unit} used today`}>
            <span class="meter-used" style={{ width: share }} />
          </div>
          <p class="small muted">{number(used)} used today</p>
        </>
      )}
    </article>
  );
}
