// One question: its text, assignee and end; its form while it is open, its answer afterwards.
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { type FormField, formFields } from '../../../../forms/answer-fields.ts';
import { author, setAuthor } from '../../data/actions.ts';
import { ApiError, enc } from '../../data/api.ts';
import { answerQuestion, describeRefusal, type Question, readAnswer, toLocal } from '../../data/questions.ts';
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
      {typeof context === 'object' && context !== null && question.step !== '' && <Context value={context} />}
      {status === 'open' ? <QuestionForm question={question} onDone={onDone} /> : <Answer question={question} />}
    </article>
  );
}

/** A list of names and values, as behind a link; the tree of a document if a value is one. */
function Context({ value }: { value: object }) {
  const entries = Object.entries(value);
  const isNested = Array.isArray(value) || entries.some(([, one]) => typeof one === 'object' && one !== null);
  if (isNested) return <Document label="Context" value={value} />;
  return (
    <dl class="facts">
      {entries.map(([name, one]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{String(one)}</dd>
        </div>
      ))}
    </dl>
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
  const fields = formFields(question);
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

/** How a value is entered, where the control does not show it. */
const forms: Partial<Record<FormField['kind'], string>> = { json: 'JSON', lines: 'one per line' };

function FieldControl({ field }: { field: FormField }) {
  const { name, label, kind, required, options, initial } = field;
  const input = { name: `field.${name}`, required };
  const first = typeof initial === 'string' ? initial : '';
  const isOptional = !required && kind !== 'checkbox' && kind !== 'choices' && !field.isList && first === '';
  const hint = isOptional ? (field.hint === undefined ? 'Optional.' : `${field.hint} (optional)`) : field.hint;
  const more = { ...(hint && { hint }) };
  if (kind === 'yesNo') {
    return (
      <Choices label={label} {...more}>
        {['true', 'false'].map((value) => (
          <label key={value}>
            <input type="radio" value={value} {...input} /> {value === 'true' ? 'Yes' : 'No'}
          </label>
        ))}
      </Choices>
    );
  }
  if (kind === 'choices') {
    return (
      <Choices label={label} {...more}>
        {options.map((value) => (
          <label key={value}>
            <input type="checkbox" name={input.name} value={value} defaultChecked={initial.includes(value)} /> {value}
          </label>
        ))}
      </Choices>
    );
  }
  if (kind === 'checkbox') {
    return (
      <label class="field question-check">
        <span>
          <input type="checkbox" name={input.name} value="true" defaultChecked={first === 'true'} /> {label}
        </span>
        {hint && <span class="field-hint">{hint}</span>}
      </label>
    );
  }
  const form = forms[kind];
  return (
    <Field label={form === undefined ? label : `${label} (${form})`} {...more}>
      <FieldInput field={field} initial={first} input={input} />
    </Field>
  );
}

function Choices({ label, hint, children }: { label: string; hint?: string; children: ComponentChildren }) {
  return (
    <fieldset class="field question-choices">
      <legend class="field-label">{label}</legend>
      {children}
      {hint && <span class="field-hint">{hint}</span>}
    </fieldset>
  );
}

interface InputProps {
  field: FormField;
  initial: string;
  input: { name: string; required: boolean };
}

function FieldInput({ field: { kind, required, options, min, max, step, maxLength }, initial, input }: InputProps) {
  switch (kind) {
    case 'choice':
      return (
        <select {...input}>
          {(!required || (initial === '' && options.length > 1)) && (
            <option value="">{required ? 'Please choose' : ''}</option>
          )}
          {options.map((value) => (
            <option key={value} value={value} selected={value === initial}>
              {value}
            </option>
          ))}
        </select>
      );
    case 'longText':
    case 'lines':
    case 'json':
      return <textarea rows={3} maxLength={maxLength} defaultValue={initial} {...input} />;
    case 'number':
      return <input type="number" step={step} min={min} max={max} defaultValue={initial} {...input} />;
    case 'dateTime':
      return <input type="datetime-local" defaultValue={toLocal(initial)} {...input} />;
    case 'date':
      return <input type="date" defaultValue={initial} {...input} />;
    case 'email':
      return <input type="email" maxLength={maxLength} defaultValue={initial} {...input} />;
    case 'url':
      return <input type="url" maxLength={maxLength} defaultValue={initial} {...input} />;
    default:
      return <input maxLength={maxLength} defaultValue={initial} {...input} />;
  }
}
