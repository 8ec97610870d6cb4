// The buttons of a job, and the dialog that asks for a reason, a result or a new limit before it acts.
import { useState } from 'preact/hooks';
import {
  type Actionable,
  type ActionBody,
  actionsOf,
  actionTexts,
  actOnJob,
  author,
  type JobAction,
  setAuthor,
} from '../../data/actions.ts';
import { ApiError } from '../../data/api.ts';
import { may } from '../../data/session.ts';
import { Dialog, DialogFoot, Field } from '../dialog.tsx';
import { Icon } from '../icons.tsx';
import { holdSentence } from './status.tsx';

interface JobActionsProps {
  job: Actionable;
  holdsLane?: boolean;
  onDone?: () => void;
  compact?: boolean;
}

export function JobActions({ job, holdsLane, onDone, compact = false }: JobActionsProps) {
  const [open, setOpen] = useState<JobAction>();
  if (!may('control')) return null;
  const actions = actionsOf(job, holdsLane);
  if (actions.length === 0) return null;
  return (
    <div class="actions">
      {actions.map((action, n) => (
        <button
          key={action}
          type="button"
          class={n === 0 && action === 'resume' ? 'button button-main' : 'button'}
          onClick={() => setOpen(action)}
          title={actionTexts[action].explain}
        >
          <Icon name={action} size={14} />
          <span class={compact && n > 0 ? 'wide-only' : ''}>{actionTexts[action].label}</span>
        </button>
      ))}
      {open && <ActionDialog job={job} action={open} onClose={() => setOpen(undefined)} {...(onDone && { onDone })} />}
    </div>
  );
}

interface ActionDialogProps {
  job: Actionable;
  action: JobAction;
  onClose: () => void;
  onDone?: () => void;
}

function ActionDialog({ job, action, onClose, onDone }: ActionDialogProps) {
  const text = actionTexts[action];
  const [error, setError] = useState<string>();
  const [busy, setBusy] = useState(false);
  const asksLimit = action === 'resume' && job.hold?.kind === 'budget';
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.target as HTMLFormElement);
    const body = bodyOf(form, action);
    if (typeof body === 'string') return setError(body);
    setBusy(true);
    try {
      await actOnJob(job, action, body);
      onClose();
      onDone?.();
    } catch (problem) {
      setError(problem instanceof ApiError ? problem.message : String(problem));
      setBusy(false);
    }
  };
  return (
    <Dialog title={text.title} onClose={onClose}>
      <form onSubmit={submit}>
        <p class="dialog-lead">
          <code>{job.type}</code>
          {job.target_id !== null && (
            <>
              {' '}
              on <strong>{job.target_id}</strong>
            </>
          )}
        </p>
        {job.hold && <p class="quote">{holdSentence(job.hold)}</p>}
        <p>{text.explain}</p>
        {asksLimit && (
          <Field label="New token limit" hint={`Used so far: ${job.usage?.tokens ?? 'unknown'}. 0 means no limit.`}>
            <input name="token_limit" type="number" min="0" step="1" value={(job.usage?.tokens ?? 0) * 2 || ''} />
          </Field>
        )}
        {asksLimit &&
          Object.entries(job.usage?.units ?? {}).map(([unit, used]) => (
            <Field key={unit} label={`New budget: ${unit}`} hint={`Used so far: ${used}. Empty leaves it as it is.`}>
              <input name={`budget.${unit}`} type="number" min="0" step="any" />
            </Field>
          ))}
        {action === 'resolve' && (
          <Field label="Result" hint="JSON, or a plain text. Leave it empty for none.">
            <textarea name="result" rows={4} spellcheck={false} class="mono" />
          </Field>
        )}
        <ReasonFields />
        <DialogFoot error={error} onClose={onClose} danger={text.danger} busy={busy}>
          {text.label} job
        </DialogFoot>
      </form>
    </Dialog>
  );
}

/** The reason and author, for readers of the history. */
export function ReasonFields() {
  return (
    <div class="field-pair">
      <Field label="Reason" hint="For those who read the history.">
        <input name="reason" maxLength={2000} autocomplete="off" />
      </Field>
      <Field label="Your name">
        <input
          name="author"
          maxLength={200}
          autocomplete="name"
          value={author()}
          onInput={(event) => setAuthor((event.target as HTMLInputElement).value)}
        />
      </Field>
    </div>
  );
}

/** Returns a text instead of a body if the form has an error. */
function bodyOf(form: FormData, action: JobAction): ActionBody | string {
  const reason = String(form.get('reason') ?? '').trim();
  const body: ActionBody = reason === '' ? {} : { reason };
  const limit = String(form.get('token_limit') ?? '').trim();
  if (limit !== '') body.token_limit = Number(limit);
  for (const [name, value] of form) {
    if (name.startsWith('budget.') && value !== '') body.budget = { ...body.budget, [name.slice(7)]: Number(value) };
  }
  if (action === 'resolve') {
    const result = String(form.get('result') ?? '').trim();
    if (result !== '') body.result = parseResult(result);
    if (result !== '' && body.result === undefined) return 'The result looks like JSON, but cannot be read as such.';
  }
  return body;
}

/** Returns undefined if the text looks like JSON and is invalid. */
function parseResult(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return /^[[{"]/.test(text) ? undefined : text;
  }
}
