// The facts of a job besides its documents, and the jobs and schedules it belongs to.
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { api, enc, queryOf } from '../../data/api.ts';
import { useQuery } from '../../data/query.ts';
import { hrefOf } from '../../data/router.ts';
import type { Job, JobSummary } from '../../data/types.ts';
import { ErrorNote } from '../feedback.tsx';
import { StatusMark } from '../jobs/status.tsx';
import { Ago, number, span } from '../time.tsx';

export function JobFacts({ job }: { job: Job }) {
  const rows: [string, ComponentChildren][] = [
    [
      'Target',
      job.target_id === null ? 'none' : <a href={hrefOf(`/targets/${enc(job.target_id)}`)}>{job.target_id}</a>,
    ],
    ['Queue', job.queue],
    ['Created', <Ago key="c" at={job.created_at} />],
    nextRun(job),
    ['Started', job.started_at && <Ago key="s" at={job.started_at} />],
    ['Ended', job.finished_at && <Ago key="f" at={job.finished_at} />],
    [
      'Attempts',
      `${job.attempts_since_resume} of ${job.max_attempts}${job.attempts > job.attempts_since_resume ? `, ${job.attempts} in all` : ''}`,
    ],
    ['Worker', job.lease_owner ?? undefined],
    ['Lease until', job.heartbeat_at && job.lease_expires_at ? <Ago key="l" at={job.lease_expires_at} /> : undefined],
    [
      'Tokens',
      job.usage.tokens > 0 || job.usage.token_limit !== null
        ? `${number(job.usage.tokens)}${job.usage.token_limit ? ` of ${number(job.usage.token_limit)}` : ''}`
        : undefined,
    ],
    ...Object.entries(job.usage.units).map(([unit, used]): [string, string] => {
      const limit = job.usage.budget[unit];
      return [unit, `${number(used)}${limit ? ` of ${number(limit)}` : ''}`];
    }),
    ['Timeout', job.timeout_seconds === null ? undefined : span(job.timeout_seconds * 1000)],
    ['Expires', job.expires_at && <Ago key="e" at={job.expires_at} />],
    ['On error', job.on_error === 'block' ? undefined : 'continue: leaves its lane'],
    ['Cost units', job.cost_units === 1 ? undefined : number(job.cost_units)],
    ['Constraints', job.constraints && <code key="k">{JSON.stringify(job.constraints)}</code>],
    ['Author', job.author ?? undefined],
    ['Request id', job.client_request_id && <code key="q">{job.client_request_id}</code>],
    ['Webhook', job.webhook_url ?? undefined],
    ['Trace', job.traceparent && <code key="t">{job.traceparent}</code>],
  ];
  return (
    <section class="card" aria-label="Facts">
      <h2>Facts</h2>
      <dl class="facts">
        {rows
          .filter(([, value]) => value !== undefined && value !== null)
          .map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
    </section>
  );
}

/** A job that waits may be due earlier than it wakes, for a reminder. */
function nextRun({ status, waiting, run_at: runAt }: Job): [string, ComponentChildren] {
  if (status === 'WAITING') return ['Waits until', waiting?.until && <Ago key="w" at={waiting.until} />];
  return ['Runs', runAt !== null && Date.parse(runAt) > Date.now() ? <Ago key="r" at={runAt} /> : undefined];
}

export function RelatedJobs({ job }: { job: Job }) {
  const [open, setOpen] = useState(false);
  const children = useQuery(open ? `children:${job.id}` : undefined, (signal) =>
    api<{ jobs: JobSummary[] }>(`/jobs${queryOf(childrenOf(job))}`, { signal }),
  );
  return (
    <section class="card" aria-label="Related jobs">
      <h2>Related</h2>
      {job.parent_id && (
        <p>
          Made by <a href={hrefOf(`/jobs/${job.parent_id}`)}>its parent job</a>
        </p>
      )}
      {job.schedule_id && (
        <p>
          Enqueued by <a href={hrefOf('/schedules')}>a schedule</a>
        </p>
      )}
      {!open ? (
        <button type="button" class="link" onClick={() => setOpen(true)}>
          Show the jobs that it enqueued
        </button>
      ) : children.error ? (
        <ErrorNote error={children.error} />
      ) : children.data?.jobs.length === 0 ? (
        <p class="muted small">It enqueued no jobs.</p>
      ) : (
        <ul class="job-lines">
          {children.data?.jobs.map((child) => (
            <li key={child.id}>
              <a class="job-line" href={hrefOf(`/jobs/${child.id}`)}>
                <StatusMark status={child.status} />
                <code>{child.type}</code>
                <span class="muted small">{child.target_id ?? ''}</span>
              </a>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

/** Only its own attempts enqueue children: the search is bounded by the time in which it ran. */
function childrenOf(job: Job) {
  return {
    parent_id: job.id,
    created_after: job.created_at,
    created_before: job.finished_at ?? undefined,
    limit: 50,
  };
}
