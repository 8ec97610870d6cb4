// One target: its lane, its pause, its jobs.
import { useState } from 'preact/hooks';
import { actionable, report, resumeTarget } from '../data/actions.ts';
import { api, enc, queryOf } from '../data/api.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { useQuery } from '../data/query.ts';
import { hrefOf } from '../data/router.ts';
import { may } from '../data/session.ts';
import type { HeadJob, JobSummary, Lane } from '../data/types.ts';
import { Empty, Loaded } from '../parts/feedback.tsx';
import { Icon } from '../parts/icons.tsx';
import { BulkButton } from '../parts/jobs/bulk.tsx';
import { CanaryButton, canTryCanary } from '../parts/jobs/canary.tsx';
import { JobActions } from '../parts/jobs/job-actions.tsx';
import { HeadWait, Labels, PauseDialog } from '../parts/jobs/lane.tsx';
import { holdSentence, Progress, StatusMark } from '../parts/jobs/status.tsx';
import { Ago, number, Since } from '../parts/time.tsx';

export function TargetPage({ id }: { id: string }) {
  useTitle(id);
  const on = (event: { target_id: string | null }) => event.target_id === id;
  const lane = useQuery(`target:${id}`, (signal) => api<Lane>(`/targets/${enc(id)}`, { signal }), { on });
  const head = lane.data?.head?.id;
  const headJob = useQuery(
    head === undefined ? undefined : `target-head:${head}`,
    (signal) => api<JobSummary>(`/jobs/${enc(head ?? '')}`, { signal }),
    { on },
  );
  const past = useQuery(
    `target-jobs:${id}`,
    (signal) =>
      api<{ jobs: JobSummary[] }>(`/targets/${enc(id)}/jobs?limit=30&status=SUCCESS,PARTIAL,CANCELED,ERROR`, {
        signal,
      }),
    { on },
  );
  const refresh = () => {
    lane.refresh();
    past.refresh();
  };
  return (
    <>
      <nav class="crumbs" aria-label="Breadcrumb">
        <a href={hrefOf('/targets')}>Targets</a>
      </nav>
      <Loaded query={lane}>
        {(data) => (
          <>
            <header class="page-head">
              <div>
                <h1>{data.id}</h1>
                <Labels labels={data.labels} />
              </div>
              <TargetActions lane={data} onChange={refresh} />
            </header>
            {data.canary_job_id !== null && (
              <p class="note">
                <strong>Canary</strong>: only <a href={hrefOf(`/jobs/${data.canary_job_id}`)}>one job</a> may run, since{' '}
                <Ago at={data.paused_at} />. The lane resumes if it succeeds, and stays stopped otherwise.
              </p>
            )}
            {data.paused && data.canary_job_id === null && (
              <p class="note note-hold">
                <strong>Paused</strong> by {data.paused_by} <Ago at={data.paused_at} />
                {data.pause_reason && <>: {data.pause_reason}</>}
                {data.paused_until && (
                  <>
                    . Ends <Ago at={data.paused_until} />
                  </>
                )}
              </p>
            )}
            <section class="card lane-card" aria-label="Lane">
              <h2>Lane</h2>
              {data.head === null ? (
                <p class="muted">
                  {data.waiting === 0 ? 'The lane is free. The next job starts at once.' : 'Nothing runs.'}
                </p>
              ) : (
                <HeadView head={data.head} job={headJob.data} targetId={id} onChange={refresh} />
              )}
              <LineView lane={data} />
            </section>
            <section aria-label="Past jobs">
              <header class="section-head">
                <h2>Past jobs</h2>
                <a href={hrefOf(`/jobs${queryOf({ target_id: id })}`)}>All jobs of this target</a>
              </header>
              <Loaded query={past}>
                {({ jobs }) =>
                  jobs.length === 0 ? (
                    <Empty icon="jobs" title="No job has ended here yet" />
                  ) : (
                    <ul class="job-lines">
                      {jobs.map((job) => (
                        <li key={job.id}>
                          <a class="job-line" href={hrefOf(`/jobs/${job.id}`)}>
                            <StatusMark status={job.status} />
                            <code>{job.type}</code>
                            <span class="clip muted">{job.error?.message ?? job.hold?.reason ?? ''}</span>
                            <span class="muted small">
                              <Ago at={job.finished_at ?? job.updated_at} />
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
        )}
      </Loaded>
    </>
  );
}

function TargetActions({ lane, onChange }: { lane: Lane; onChange: () => void }) {
  const [asks, setAsks] = useState(false);
  if (!may('control')) return null;
  return (
    <div class="page-actions">
      <BulkButton
        action="resume"
        filter={{ target_id: lane.id, status: ['PAUSED', 'ERROR'] }}
        label="Resume all held"
        onDone={onChange}
      />
      {canTryCanary(lane) && <CanaryButton targetId={lane.id} onDone={onChange} />}
      {lane.paused ? (
        <button
          type="button"
          class="button button-main"
          onClick={() => void resumeTarget(lane.id).then(onChange, report)}
        >
          <Icon name="resume" size={14} /> Resume target
        </button>
      ) : (
        <button type="button" class="button" onClick={() => setAsks(true)}>
          <Icon name="pause" size={14} /> Pause target
        </button>
      )}
      {asks && <PauseDialog targetId={lane.id} onClose={() => setAsks(false)} onDone={onChange} />}
    </div>
  );
}

interface HeadViewProps {
  head: HeadJob;
  job: JobSummary | undefined;
  targetId: string;
  onChange: () => void;
}

function HeadView({ head, job, targetId, onChange }: HeadViewProps) {
  return (
    <div class={`head-view head-view-${head.status}`}>
      <div class="head-view-top">
        <StatusMark status={head.status} />
        <a href={hrefOf(`/jobs/${head.id}`)}>
          <code>{head.type}</code>
        </a>
        <span class="muted small">
          <Ago at={head.held_since ?? head.created_at} />
        </span>
      </div>
      {head.hold && <p class="quote">{holdSentence(head.hold)}</p>}
      <HeadWait head={head} />
      {head.status === 'RUNNING' && job && (
        <>
          <Progress value={job.progress ?? 0} message={job.progress_message} />
          <p class="muted small">{job.progress_message ?? `On ${job.lease_owner}`}</p>
        </>
      )}
      <JobActions job={job ?? actionable(head, targetId)} holdsLane onDone={onChange} />
    </div>
  );
}

function LineView({ lane }: { lane: Lane }) {
  if (lane.waiting === 0) return <p class="muted small">Nothing waits in line.</p>;
  return (
    <>
      <p class="small">
        {number(lane.waiting)}
        {lane.waiting_exact ? '' : ' or more'} in line, in this order:
      </p>
      <ol class="job-lines numbered">
        {lane.next.map((job) => (
          <li key={job.id}>
            <a class="job-line" href={hrefOf(`/jobs/${job.id}`)}>
              <StatusMark status={job.status} />
              <code>{job.type}</code>
              {job.priority !== 'NORMAL' && <span class="chip">{job.priority.toLowerCase()}</span>}
              <span class="muted small">
                waits <Since at={job.created_at} />
              </span>
            </a>
          </li>
        ))}
      </ol>
    </>
  );
}
