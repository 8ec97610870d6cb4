// One job: its state and reasons, its timeline, its logs and errors, and its history.
import { type ApiError, api, enc, queryOf } from '../data/api.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { type Query, useQuery } from '../data/query.ts';
import type { Question } from '../data/questions.ts';
import { hrefOf } from '../data/router.ts';
import type { Job, LiveEvent } from '../data/types.ts';
import { ErrorNote, Waiting } from '../parts/feedback.tsx';
import { JobFacts, RelatedJobs } from '../parts/job-page/job-facts.tsx';
import { JobGraph } from '../parts/job-page/job-graph.tsx';
import { JobHeader } from '../parts/job-page/job-header.tsx';
import { ErrorsView, History } from '../parts/job-page/job-history.tsx';
import { JobLogs } from '../parts/job-page/job-logs.tsx';
import { Waterfall } from '../parts/job-page/waterfall.tsx';
import { Document } from '../parts/json-tree.tsx';
import { QuestionCard } from '../parts/questions/question-card.tsx';

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
      <JobHeader job={data} onChange={refresh} />
      {job.error && <ErrorNote error={job.error} retry={job.refresh} />}
      {mayHaveQuestions(data) && <JobQuestions job={data} onDone={refresh} />}
      <div class="stack">
        <section class="card" aria-label="Timeline">
          <h2>Timeline</h2>
          {events.data ? <Waterfall job={data} events={events.data.events} /> : <Waiting rows={2} />}
        </section>
        <JobGraph job={data} />
        {events.data && <ErrorsView job={data} events={events.data.events} />}
      </div>
      <div class="columns">
        <div class="stack">
          <section class="card">
            <Document label="Payload" value={data.payload} note="The payload is empty." />
            <Document label="Result" value={data.result} note="No result yet." />
            {data.checkpoint !== null && <Document label="Checkpoint" value={data.checkpoint} />}
            {data.phases.some((phase) => phase.result !== null) && (
              <Document
                label={resultsLabel(data)}
                value={Object.fromEntries(
                  data.phases.filter((phase) => phase.result !== null).map((phase) => [phase.name, phase.result]),
                )}
              />
            )}
          </section>
          <JobLogs job={data} />
        </div>
        <div class="stack">
          <JobFacts job={data} />
          <RelatedJobs job={data} />
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

/** A budget that stops a job asks, too. */
function mayHaveQuestions({ phases, hold }: Job): boolean {
  return hold?.kind === 'budget' || phases.some((phase) => phase.kind === 'question');
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

function resultsLabel({ phases, phases_total: total }: Job): string {
  const what = phases.every((phase) => phase.kind === 'phase') ? 'phases' : 'durable calls';
  return `Results of ${total === undefined ? '' : 'the last '}${what}`;
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
