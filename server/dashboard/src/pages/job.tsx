// One job: what it does and why, when it ran, what it said, what went wrong, who did what.
import { useState } from 'preact/hooks';
import { type ApiError, api, apiUrl, enc, queryOf } from '../data/api.ts';
import { useTitle } from '../data/holds.ts';
import { type Query, useQuery } from '../data/query.ts';
import type { Question } from '../data/questions.ts';
import { hrefOf } from '../data/router.ts';
import { may } from '../data/session.ts';
import type { Job, JobSummary, LiveEvent, Why } from '../data/types.ts';
import { Copy } from '../parts/copy.tsx';
import { ErrorNote, Waiting } from '../parts/feedback.tsx';
import { JobActions } from '../parts/jobs/job-actions.tsx';
import { JobGraph } from '../parts/jobs/job-graph.tsx';
import { ErrorsView, History } from '../parts/jobs/job-history.tsx';
import { JobLogs } from '../parts/jobs/job-logs.tsx';
import { RunAgain } from '../parts/jobs/run-again.tsx';
import { Progress, StatusMark } from '../parts/jobs/status.tsx';
import { Waterfall } from '../parts/jobs/waterfall.tsx';
import { Document } from '../parts/json-tree.tsx';
import { QuestionCard } from '../parts/questions/question-card.tsx';
import { Ago, number, Sentence, span } from '../parts/time.tsx';

const shownEvents = 1000;

export function JobPage({ id }: { id: string }) {
  const on = (event: LiveEvent) => event.job_id === id;
  const job = useQuery(`job:${id}`, (signal) => api<Job>(`/jobs/${enc(id)}`, { signal }), { on });
  const events = useQuery(
    `job-events:${id}`,
    (signal) => api<{ events: LiveEvent[] }>(`/jobs/${enc(id)}/events?limit=${shownEvents}`, { signal }),
    { on },
  );
  useTitle(job.data ? `${job.data.type}` : 'Job');
  if (job.data === undefined) return job.error ? <GoneJob error={job.error} events={events} /> : <Waiting rows={6} />;
  const data = job.data;
  const refresh = () => {
    job.refresh();
    events.refresh();
  };
  return (
    <>
      <nav class="crumbs" aria-label="Breadcrumb">
        <a href={hrefOf('/jobs')}>Jobs</a>
        {data.target_id !== null && <a href={hrefOf(`/targets/${enc(data.target_id)}`)}>{data.target_id}</a>}
      </nav>
      <Header job={data} onChange={refresh} />
      {job.error && <ErrorNote error={job.error} retry={job.refresh} />}
      {data.phases.some((phase) => phase.kind === 'question') && <JobQuestions job={data} onDone={refresh} />}
      <section class="card" aria-label="Timeline">
        <h2>Timeline</h2>
        {events.data ? <Waterfall job={data} events={events.data.events} /> : <Waiting rows={2} />}
      </section>
      <JobGraph job={data} />
      {events.data && <ErrorsView job={data} events={events.data.events} />}
      <div class="columns">
        <div class="stack">
          <section class="card">
            <Document label="Payload" value={data.payload} note="The payload is empty." />
            <Document label="Result" value={data.result} note="No result yet." />
            {data.checkpoint !== null && <Document label="Checkpoint" value={data.checkpoint} />}
            {data.phases.some((phase) => phase.result !== null) && (
              <Document
                label="Output of phases"
                value={Object.fromEntries(
                  data.phases.filter((phase) => phase.result !== null).map((phase) => [phase.name, phase.result]),
                )}
              />
            )}
          </section>
          <JobLogs job={data} />
        </div>
        <div class="stack">
          <Facts job={data} />
          <Relatives job={data} />
          <section class="card" aria-label="History">
            <h2>History</h2>
            {events.data ? (
              <History events={events.data.events} cut={events.data.events.length >= shownEvents} />
            ) : (
              <Waiting rows={3} />
            )}
          </section>
        </div>
      </div>
    </>
  );
}

function JobQuestions({ job, onDone }: { job: Job; onDone: () => void }) {
  const questions = useQuery(
    `job-questions:${job.id}`,
    (signal) => api<{ questions: Question[] }>(`/questions${queryOf({ job_id: job.id })}`, { signal }),
    { on: (event) => event.job_id === job.id && event.type.startsWith('question') },
  );
  const done = () => {
    questions.refresh();
    onDone();
  };
  return (
    <section class="stack questions" aria-label="Questions">
      {questions.data?.questions.map((question) => (
        <QuestionCard key={question.id} question={question} onDone={done} />
      ))}
    </section>
  );
}

function Header({ job, onChange }: { job: Job; onChange: () => void }) {
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

function Facts({ job }: { job: Job }) {
  const rows: [string, preact.ComponentChildren][] = [
    [
      'Target',
      job.target_id === null ? 'none' : <a href={hrefOf(`/targets/${enc(job.target_id)}`)}>{job.target_id}</a>,
    ],
    ['Queue', job.queue],
    ['Created', <Ago key="c" at={job.created_at} />],
    // A job that waits for others has no such time.
    [
      'Runs at',
      Date.parse(job.run_at) > Date.now() && !job.run_at.startsWith('9999') ? (
        <Ago key="r" at={job.run_at} />
      ) : undefined,
    ],
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

function Relatives({ job }: { job: Job }) {
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
          Look for jobs that it enqueued
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

/** Retention removes jobs before their history. */
function GoneJob({ error, events }: { error: ApiError; events: Query<{ events: LiveEvent[] }> }) {
  return (
    <>
      <ErrorNote error={error} />
      {events.data && events.data.events.length > 0 && (
        <section class="card">
          <h2>What is left of its history</h2>
          <History events={events.data.events} cut={false} />
        </section>
      )}
    </>
  );
}
