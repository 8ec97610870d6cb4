// Questions to people: open ones with their forms, and earlier answers.
import { useState } from 'preact/hooks';
import { api, queryOf } from '../data/api.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { useQuery } from '../data/query.ts';
import type { Question } from '../data/questions.ts';
import { Empty, Loaded } from '../parts/feedback.tsx';
import { QuestionCard } from '../parts/questions/question-card.tsx';

const statuses = ['open', 'answered', 'expired', 'canceled'] as const;

export function QuestionsPage() {
  useTitle('Questions');
  const [status, setStatus] = useState<Question['status']>('open');
  const questions = useQuery(
    `questions:${status}`,
    (signal) => api<{ questions: Question[] }>(`/questions${queryOf({ status, limit: 100 })}`, { signal }),
    { on: (event) => event.type.startsWith('question') },
  );
  return (
    <>
      <header class="page-head">
        <h1>Questions</h1>
        <div class="page-actions">
          {statuses.map((one) => (
            <button type="button" key={one} class="button" aria-pressed={one === status} onClick={() => setStatus(one)}>
              {one.charAt(0).toUpperCase() + one.slice(1)}
            </button>
          ))}
        </div>
      </header>
      <Loaded query={questions}>
        {(data) =>
          data.questions.length === 0 ? (
            <Empty icon="question" title={`No ${status} questions`}>
              <p>A handler that calls ask() waits here for a person.</p>
            </Empty>
          ) : (
            <div class="stack">
              {data.questions.map((question) => (
                <QuestionCard key={question.id} question={question} onDone={questions.refresh} />
              ))}
            </div>
          )
        }
      </Loaded>
    </>
  );
}
