// The head of a job's page: its type and state, the reasons why it does not run, and its actions.
import { api, apiUrl, enc } from '../../data/api.ts';
import { type Query, useQuery } from '../../data/query.ts';
import { hrefOf } from '../../data/router.ts';
import { may } from '../../data/session.ts';
import type { Job, Why } from '../../data/types.ts';
import { Copy } from '../copy.tsx';
import { JobActions } from '../jobs/job-actions.tsx';
import { Progress, StatusMark } from '../jobs/status.tsx';
import { Sentence } from '../time.tsx';
import { RunAgain } from './run-again.tsx';

export function JobHeader({ job, onChange }: { job: Job; onChange: () => void }) {
  const why = useQuery(`why:${job.id}`, (signal) => api<Why>(`/jobs/${enc(job.id)}/why`, { signal }), {
    on: (event) => event.job_id === job.id || (job.target_id !== null && event.target_id === job.target_id),
  });
  return (
    <header class="job-head">
      <div class="job-title">
        <h1>
          <code>{job.type}</code>
        </h1>
        <StatusMark status={job.status} stopping={job.cancel_requested} />
        {job.priority !== 'NORMAL' && <span class="chip">{job.priority.toLowerCase()}</span>}
      </div>
      <p class="job-id muted small">
        <code>{job.id}</code> <Copy text={job.id} label="Copy the job's id" />
      </p>
      <WhyView why={why} job={job} />
      {job.status === 'RUNNING' && (
        <div class="job-progress">
          <Progress value={job.progress ?? 0} message={job.progress_message} />
          <span class="small">
            {Math.round(job.progress ?? 0)} % {job.progress_message}
          </span>
        </div>
      )}
      <div class="page-actions">
        <JobActions job={job} holdsLane={job.target_id !== null && job.on_error === 'block'} onDone={onChange} />
        {may('enqueue') && <RunAgain job={job} />}
        <Copy text={curlOf(job)} label="Copy a curl line that enqueues this job">
          Copy as curl
        </Copy>
      </div>
    </header>
  );
}

function WhyView({ why, job }: { why: Query<Why>; job: Job }) {
  const { data } = why;
  if (data === undefined) return null;
  if (data.running) return <p class="why">Running on {job.lease_owner ?? 'a worker'}.</p>;
  if (data.reasons.length === 0) return <p class="why">Nothing stops it: the next claim takes it.</p>;
  return (
    <ul class="why">
      {data.reasons.slice(0, 4).map((reason) => (
        <li key={`${reason.code}${reason.job_id ?? ''}`}>
          <Sentence text={reason.detail} />
          {reason.release?.detail && (
            <span class="muted">
              {' '}
              <Sentence text={reason.release.detail} />
            </span>
          )}
          {reason.job_id && reason.job_id !== job.id && (
            <>
              {' '}
              <a href={hrefOf(`/jobs/${reason.job_id}`)}>Open that job</a>
            </>
          )}
        </li>
      ))}
      {data.reasons.length > 4 && <li class="muted">and {data.reasons.length - 4} more reasons</li>}
    </ul>
  );
}

function curlOf(job: Job): string {
  const body = JSON.stringify({
    type: job.type,
    payload: job.payload,
    ...(job.priority !== 'NORMAL' && { priority: job.priority }),
    ...(job.queue !== 'default' && { queue: job.queue }),
  }).replaceAll("'", "'\\''");
  const path = apiUrl(job.target_id === null ? '/jobs' : `/targets/${enc(job.target_id)}/jobs`);
  return `curl -X POST ${location.origin}${path} -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' -d '${body}'`;
}
