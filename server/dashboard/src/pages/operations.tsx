// Bulk operations: their request, author and progress.
import { api } from '../data/api.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { useQuery } from '../data/query.ts';
import type { Operation } from '../data/types.ts';
import { Empty, Loaded } from '../parts/feedback.tsx';
import { CanaryJob, FilterText, LeftAlone } from '../parts/jobs/bulk.tsx';
import { Progress } from '../parts/jobs/status.tsx';
import { Ago, number } from '../parts/time.tsx';

export function OperationsPage() {
  useTitle('Operations');
  const operations = useQuery(
    'operations',
    (signal) => api<{ operations: Operation[] }>('/operations?limit=100', { signal }),
    {
      on: (event) => event.actor.startsWith('operation:'),
      everyMs: 5000,
    },
  );
  return (
    <>
      <header class="page-head">
        <h1>Operations</h1>
      </header>
      <Loaded query={operations}>
        {(data) =>
          data.operations.length === 0 ? (
            <Empty icon="operations" title="No operations yet">
              <p>Resume, retry or cancel many jobs at once from the list of jobs; their progress shows here.</p>
            </Empty>
          ) : (
            <div class="stack">
              {data.operations.map((operation) => (
                <article key={operation.id} class="card operation">
                  <header>
                    <h2>
                      {operation.action} <span class="muted">{number(operation.matched)} jobs</span>
                    </h2>
                    <span class="muted small">
                      {operation.author ?? ''} <Ago at={operation.created_at} />
                    </span>
                  </header>
                  <FilterText filter={operation.filter} />
                  {operation.reason && <p class="quote">{operation.reason}</p>}
                  <Progress value={operation.progress} message={`Progress of ${operation.action}`} />
                  <p class="small">
                    {number(operation.done)} done
                    <LeftAlone operation={operation} />, {operation.status}
                  </p>
                  <CanaryJob operation={operation} />
                </article>
              ))}
            </div>
          )
        }
      </Loaded>
    </>
  );
}
