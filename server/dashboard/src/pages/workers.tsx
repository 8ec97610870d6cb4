// The workers: daemons (for operators) and, for every tenant, the holders of leases and lost leases.
import { api } from '../data/api.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { useQuery } from '../data/query.ts';
import { hrefOf } from '../data/router.ts';
import { isOperator } from '../data/session.ts';
import type { Daemon, JobSummary } from '../data/types.ts';
import { Empty, Loaded } from '../parts/feedback.tsx';
import { Progress, StatusMark } from '../parts/jobs/status.tsx';
import { Ago, number, Since, span, useNow } from '../parts/time.tsx';

interface Zombie {
  job_id: string;
  target_id: string | null;
  at: string;
  attempt: number | null;
  owner: string | null;
  became_of: 'retried' | 'failed';
}

const owned = 'RUNNING,CLAIMED,PREPARING,LEASE_PENDING';

export function WorkersPage() {
  useTitle('Workers');
  const running = useQuery(
    'workers:running',
    (signal) => api<{ jobs: JobSummary[]; next_cursor: string | null }>(`/jobs?status=${owned}&limit=200`, { signal }),
    { on: (event) => event.to !== event.from, everyMs: 10_000 },
  );
  const lost = useQuery('workers:lost', (signal) => api<{ zombies: Zombie[] }>('/stats/zombies?limit=50', { signal }), {
    on: (event) => event.type === 'job.lease_expired' || event.type === 'job.failed',
  });
  return (
    <>
      <header class="page-head">
        <h1>Workers</h1>
      </header>
      {isOperator() && <Daemons />}
      <Drains />
      <section aria-label="Who holds leases">
        <h2 class="section-title">Who runs this tenant's jobs</h2>
        <Loaded query={running}>
          {({ jobs, next_cursor }) =>
            jobs.length === 0 ? (
              <Empty icon="workers" title="No job is running">
                <p>Daemons and remote workers appear here while they hold leases.</p>
              </Empty>
            ) : (
              <>
                <div class="worker-grid">
                  {[...byOwner(jobs)].map(([owner, own]) => (
                    <WorkerCard key={owner} owner={owner} jobs={own} />
                  ))}
                </div>
                {next_cursor !== null && <p class="muted small">Only the newest 200 running jobs are shown.</p>}
              </>
            )
          }
        </Loaded>
      </section>
      <section aria-label="Lost leases">
        <h2 class="section-title">Workers lost in the last 24 hours</h2>
        <Loaded query={lost}>
          {({ zombies }) =>
            zombies.length === 0 ? (
              <p class="muted">None: every attempt was ended by its worker.</p>
            ) : (
              <ul class="job-lines">
                {zombies.map((zombie) => (
                  <li key={`${zombie.job_id}${zombie.at}`}>
                    <a class="job-line" href={hrefOf(`/jobs/${zombie.job_id}`)}>
                      <span class="tone-fail">{zombie.owner ?? 'a worker'} went silent</span>
                      <span class="muted">{zombie.target_id ?? 'no target'}</span>
                      <span>{zombie.became_of === 'retried' ? 'the job was retried' : 'the job failed'}</span>
                      <span class="muted small">
                        <Ago at={zombie.at} />
                      </span>
                    </a>
                  </li>
                ))}
              </ul>
            )
          }
        </Loaded>
      </section>
    </>
  );
}

interface TenantWorker {
  id: string;
  state: string | null;
  drain_ends_at: string | null;
  draining_jobs: {
    job_id: string;
    type: string;
    target_id: string | null;
    progress: number | null;
    expected_at: string | null;
    misses_drain: boolean | null;
  }[];
}

/** Daemons that drain while they run jobs of this tenant: the time left, and the jobs that will not finish in it. */
function Drains() {
  const now = useNow();
  const workers = useQuery('workers:drains', (signal) => api<{ workers: TenantWorker[] }>('/workers', { signal }), {
    on: (event) => event.to !== event.from,
    everyMs: 5000,
  });
  const draining = workers.data?.workers.filter((worker) => worker.drain_ends_at !== null) ?? [];
  if (draining.length === 0) return null;
  return (
    <section aria-label="Drains">
      <h2 class="section-title">Draining</h2>
      <div class="stack">
        {draining.map((worker) => {
          const left = Math.max(0, Date.parse(worker.drain_ends_at ?? '') - now);
          return (
            <article key={worker.id} class="card worker worker-draining" aria-label={`Drain of ${worker.id}`}>
              <header>
                <h3 class="clip">{worker.id}</h3>
                <span class="countdown" title="Then what still runs is paused or requeued">
                  {left === 0 ? 'grace is over' : `${span(left)} left`}
                </span>
              </header>
              <ul class="plain-list">
                {worker.draining_jobs.map((job) => (
                  <li key={job.job_id}>
                    <a class="worker-job" href={hrefOf(`/jobs/${job.job_id}`)}>
                      <code>{job.type}</code>
                      <span class="muted small clip">{job.target_id ?? ''}</span>
                      <DrainVerdict misses={job.misses_drain} expectedAt={job.expected_at} />
                    </a>
                    {job.progress !== null && <Progress value={job.progress} message={null} />}
                  </li>
                ))}
              </ul>
            </article>
          );
        })}
      </div>
    </section>
  );
}

function DrainVerdict({ misses, expectedAt }: { misses: boolean | null; expectedAt: string | null }) {
  if (misses === null) return <span class="muted small">no progress to estimate from</span>;
  return (
    <span class={misses ? 'tone-fail small' : 'tone-done small'}>
      {misses ? 'will miss it: ' : 'ends in time: '}
      <Ago at={expectedAt} />
    </span>
  );
}

function byOwner(jobs: readonly JobSummary[]): Map<string, JobSummary[]> {
  const owners = new Map<string, JobSummary[]>();
  for (const job of jobs) {
    const owner = job.lease_owner ?? 'unknown';
    owners.set(owner, [...(owners.get(owner) ?? []), job]);
  }
  return owners;
}

function WorkerCard({ owner, jobs }: { owner: string; jobs: JobSummary[] }) {
  const beat = jobs
    .flatMap((job) => (job.heartbeat_at === null ? [] : [job.heartbeat_at]))
    .sort()
    .at(-1);
  return (
    <article class="card worker">
      <header>
        <h3 class="clip">{owner}</h3>
        <span class="muted small">{jobs.some((job) => job.remote) ? 'remote worker' : 'daemon'}</span>
      </header>
      <p class="small">
        {number(jobs.length)} {jobs.length === 1 ? 'job' : 'jobs'}
        {beat && (
          <>
            , last heartbeat <Ago at={beat} />
          </>
        )}
      </p>
      <ul class="plain-list">
        {jobs.slice(0, 6).map((job) => (
          <li key={job.id}>
            <a class="worker-job" href={hrefOf(`/jobs/${job.id}`)}>
              <code>{job.type}</code>
              <span class="muted small clip">{job.target_id ?? ''}</span>
              {job.status === 'RUNNING' ? (
                <span class="small">
                  <Since at={job.started_at} />
                </span>
              ) : (
                <StatusMark status={job.status} />
              )}
            </a>
            {job.progress !== null && <Progress value={job.progress} message={job.progress_message} />}
          </li>
        ))}
      </ul>
      {jobs.length > 6 && <p class="muted small">and {jobs.length - 6} more</p>}
    </article>
  );
}

function Daemons() {
  const daemons = useQuery('daemons', (signal) => api<{ workers: Daemon[] }>('/admin/workers', { signal }), {
    everyMs: 5000,
  });
  return (
    <section aria-label="Daemons">
      <h2 class="section-title">Daemons</h2>
      <Loaded query={daemons}>
        {({ workers }) => (
          <div class="worker-grid">
            {workers.map((daemon) => (
              <article key={daemon.id} class={`card worker worker-${daemon.state}`}>
                <header>
                  <h3 class="clip">{daemon.id}</h3>
                  <span
                    class={`status tone-${daemon.state === 'alive' ? 'done' : daemon.state === 'draining' ? 'hold' : 'fail'}`}
                  >
                    <span
                      class={`glyph glyph-${daemon.state === 'alive' ? 'done' : daemon.state === 'draining' ? 'hold' : 'fail'}`}
                      aria-hidden="true"
                    />
                    {daemon.state}
                  </span>
                </header>
                <p class="small">
                  Runs {number(daemon.running)} jobs, heartbeat {span(daemon.seconds_since_beat * 1000)} ago
                  {daemon.drain_ends_at && daemon.state === 'draining' && (
                    <>
                      , grace ends <Ago at={daemon.drain_ends_at} />
                    </>
                  )}
                </p>
                <p class="muted small">
                  {daemon.host}, pid {daemon.pid}, version {daemon.version}, up <Since at={daemon.started_at} />
                </p>
                <p class="muted small clip" title={daemon.job_types.join(', ')}>
                  {daemon.job_types.length} job types
                </p>
              </article>
            ))}
          </div>
        )}
      </Loaded>
    </section>
  );
}
