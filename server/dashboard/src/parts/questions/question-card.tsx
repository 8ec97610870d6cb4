// One question: its text, assignee and end; its form while it is open, its answer afterwards.
import { useState } from 'preact/hooks';
import { author, setAuthor } from '../../data/actions.ts';
import { ApiError, enc } from '../../data/api.ts';
import {
  answerQuestion,
  describeRefusal,
  fieldsOf,
  type Question,
  type QuestionField,
  readAnswer,
} from '../../data/questions.ts';
import { hrefOf } from '../../data/router.ts';
import { may } from '../../data/session.ts';
import { Field } from '../dialog.tsx';
import { Document } from '../json-tree.tsx';
import { Ago } from '../time.tsx';

export function QuestionCard({ question, onDone }: { question: Question; onDone: () => void }) {
  const { title, target_id: target, assignees, status, context } = question;
  return (
    <article class="hold question" aria-label={`Question: ${title}`}>
      <header class="hold-head">
        <h2>{title}</h2>
        <span class="muted small">
          asked <Ago at={question.asked_at} />
        </span>
      </header>
      <p class="small muted">
        <a href={hrefOf(`/jobs/${question.job_id}`)}>Job</a>
        {target !== null && (
          <>
            {' '}
            on <a href={hrefOf(`/targets/${enc(target)}`)}>{target}</a>
          </>
        )}
        {assignees.length > 0 && `, for ${assignees.join(', ')}`}
        {status === 'open' && question.expires_at !== null && (
          <>
            , answer due <Ago at={question.expires_at} />
          </>
        )}
      </p>
      {typeof context === 'string' && <p class="question-context">{context}</p>}
      {/* Of a budget the title has all of it. */}
      {typeof context === 'object' && context !== null && question.step !== '' && (
        <Document label="Context" value={context} />
      )}
      {status === 'open' ? <QuestionForm question={question} onDone={onDone} /> : <Answer question={question} />}
    </article>
  );
}

function Answer({
  question: { status, action, actions, answer, answered_by: by, closed_at: at },
}: {
  question: Question;
}) {
  const label = actions.find((one) => one.name === action)?.label ?? action;
  return (
    <>
      <p>
        {label !== null && <strong>{label} </strong>}
        {status === 'answered' ? `answered by ${by ?? 'somebody'}` : status} <Ago at={at} />
      </p>
      {answer !== null && Object.keys(answer).length > 0 && <Document label="Answer" value={answer} />}
    </>
  );
}

function QuestionForm({ question, onDone }: { question: Question; onDone: () => void }) {
  const [error, setError] = useState<string>();
  const [busy, setBusy] = useState(false);
  const fields = fieldsOf(question);
  if (!may('control')) return <p class="muted">Your key may not answer questions.</p>;
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const button = event.submitter as HTMLButtonElement | null;
    setBusy(true);
    try {
      const answer = readAnswer(fields, new FormData(event.target as HTMLFormElement));
      await answerQuestion(question, answer, button?.value === '' ? undefined : button?.value);
      setError(undefined);
      onDone();
    } catch (problem) {
      setError(problem instanceof ApiError ? describeRefusal(problem, fields) : String(problem));
      // Another person was faster, so their answer is shown.
      if (problem instanceof ApiError && problem.status === 409) onDone();
    }
    setBusy(false);
  };
  const buttons =
    question.actions.length > 0 ? question.actions : [{ name: '', label: 'Answer', style: 'primary' } as const];
  return (
    <form class="question-form" onSubmit={submit}>
      {fields.map((field) => (
        <FieldControl key={field.name} field={field} />
      ))}
      <Field label="Your name">
        <input
          maxLength={200}
          autocomplete="name"
          value={author()}
          onInput={(event) => setAuthor((event.target as HTMLInputElement).value)}
        />
      </Field>
      {error && (
        <p class="field-error" role="alert">
          {error}
        </p>
      )}
      <div class="actions">
        {buttons.map(({ name, label, style }) => (
          <button
            key={name}
            type="submit"
            value={name}
            class={`button ${style === 'primary' ? 'button-main' : style === 'danger' ? 'button-danger' : ''}`}
            disabled={busy}
          >
            {label ?? name}
          </button>
        ))}
      </div>
    </form>
  );
}

function FieldControl({ field }: { field: QuestionField }) {
  const { name, label, hint, control, required, property } = field;
  const input = { name: `field.${name}`, required };
  const initial = property.default === undefined ? '' : String(property.default);
  const more = { ...(hint && { hint }) };
  if (control === 'yesNo') {
    return (
      <fieldset class="field question-choices">
        <legend class="field-label">{label}</legend>
        {['true', 'false'].map((value) => (
          <label key={value}>
            <input type="radio" value={value} {...input} /> {value === 'true' ? 'Yes' : 'No'}
          </label>
        ))}
        {hint && <span class="field-hint">{hint}</span>}
      </fieldset>
    );
  }
  if (control === 'check') {
    return (
      <label class="field question-check">
        <span>
          <input type="checkbox" name={input.name} value="true" checked={property.default === true} /> {label}
        </span>
        {hint && <span class="field-hint">{hint}</span>}
      </label>
    );
  }
  if (control === 'choice') {
    return (
      <Field label={label} {...more}>
        <select {...input}>
          {!required && <option value="" />}
          {(property.enum as string[]).map((value) => (
            <option key={value} value={value} selected={value === initial}>
              {value}
            </option>
          ))}
        </select>
      </Field>
    );
  }
  return (
    <Field label={control === 'json' ? `${label} (JSON)` : label} {...more}>
      {control === 'number' ? (
        <input
          type="number"
          step={property.type === 'integer' ? 1 : 'any'}
          min={property.minimum as number}
          max={property.maximum as number}
          defaultValue={initial}
          {...input}
        />
      ) : control === 'line' ? (
        <input maxLength={property.maxLength as number} defaultValue={initial} {...input} />
      ) : (
        <textarea rows={3} defaultValue={initial} {...input} />
      )}
    </Field>
  );
}
