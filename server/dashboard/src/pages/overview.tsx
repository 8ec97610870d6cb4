// Everything that needs a person, then the key figures and plots.
import { api, queryOf } from '../data/api.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { type Query, useQuery } from '../data/query.ts';
import type { Question } from '../data/questions.ts';
import { hrefOf } from '../data/router.ts';
import { may } from '../data/session.ts';
import type { Attention } from '../data/types.ts';
import { Empty, Loaded } from '../parts/feedback.tsx';
import { BulkButton } from '../parts/jobs/bulk.tsx';
import { HoldCard } from '../parts/jobs/hold-card.tsx';
import { Numbers } from '../parts/numbers.tsx';
import { QuestionCard } from '../parts/questions/question-card.tsx';
import { Ago, number } from '../parts/time.tsx';

export function OverviewPage() {
  useTitle('Overview');
  const attention = useQuery('attention', (signal) => api<Attention>('/attention', { signal }), {
    on: (event) => event.to !== event.from || event.type.startsWith('schedule') || event.type.startsWith('target'),
  });
  const questions = useQuery(
    'open-questions',
    (signal) =>
      api<{ questions: Question[]; next_cursor: string | null }>('/questions?status=open&limit=12', { signal }),
    { on: (event) => event.type.startsWith('question') },
  );
  const open = questions.data?.questions ?? [];
  return (
    <>
      <header class="page-head">
        <h1>Needs attention</h1>
        <Loadline attention={attention} />
      </header>
      {open.length > 0 && (
        <section class="stack questions" aria-label="Questions">
          {open.map((question) => (
            <QuestionCard key={question.id} question={question} onDone={questions.refresh} />
          ))}
          {questions.data?.next_cursor && (
            <a class="more-link" href={hrefOf('/questions')}>
              All questions
            </a>
          )}
        </section>
      )}
      <Loaded query={attention} rows={3}>
        {(data) => <AttentionView data={data} questions={open} onChange={attention.refresh} />}
      </Loaded>
      <Numbers />
    </>
  );
}

function Loadline({ attention }: { attention: Query<Attention> }) {
  const holds = attention.data?.holds;
  const count = holds ? holds.paused + holds.error : 0;
  if (!holds || count === 0) return null;
  const drained = holds.newest.filter((each) => each.job.hold?.kind === 'drain').length;
  return (
    <div class="page-actions">
      <a class="button" href={hrefOf('/jobs?held=true')}>
        {count === 1 ? 'The hold' : `All ${number(count)} holds`}
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

interface AttentionViewProps {
  data: Attention;
  /** Questions that are shown above. A held job with such a question needs no second card. */
  questions: Question[];
  onChange: () => void;
}

function AttentionView({ data, questions, onChange }: AttentionViewProps) {
  const { holds, failing_types: types, failed_schedules: schedules, lost_workers: lost } = data;
  const webhooks = data.disabled_webhooks;
  const others = types.length + schedules.length + lost.length + webhooks.length > 0;
  if (holds.newest.length === 0 && !others) {
    if (questions.length > 0) return null;
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
  const withoutQuestion = holds.newest.filter(({ job }) => questions.every((question) => question.job_id !== job.id));
  return (
    <div class={others ? 'attention' : 'attention attention-single'}>
      <section class="stack" aria-label="Holds">
        {withoutQuestion.map((hold) => (
          <HoldCard key={hold.job.id} hold={hold} onChange={onChange} />
        ))}
        {withoutQuestion.length === 0 && <p class="muted">No {questions.length > 0 && 'other '}job holds its lane.</p>}
        {more > 0 && (
          <a class="more-link" href={hrefOf('/jobs?held=true')}>
            {number(more)} more
          </a>
        )}
      </section>
      {others && (
        <aside class="stack" aria-label="Other problems">
          <FailingTypes types={types} onChange={onChange} />
          <LostWorkers lost={lost} />
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
            {each.count > 1 && (
              <p class="small">
                <a href={hrefOf(`/jobs${queryOf({ status: 'ERROR', type: each.type })}`)}>
                  All {number(each.count)} in the list
                </a>
              </p>
            )}
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

function LostWorkers({ lost }: { lost: Attention['lost_workers'] }) {
  if (lost.length === 0) return null;
  return (
    <section class="card">
      <h2>
        <a href={hrefOf('/workers')}>Lost workers</a>
      </h2>
      <ul class="plain-list">
        {lost.map((each) => (
          <li key={each.owner}>
            <strong class="clip">{each.owner}</strong>
            <p class="small">
              went silent with {each.attempts === 1 ? 'one attempt' : `${number(each.attempts)} attempts`},{' '}
              <a class="muted" href={hrefOf(`/jobs/${each.last_job_id}`)}>
                last <Ago at={each.last_at} />
              </a>
            </p>
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
      <h2>Schedules that failed or missed runs</h2>
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
