// One action on many jobs: a dry run, a confirmation with the number of jobs, then progress and refusals.
import { useEffect, useState } from 'preact/hooks';
import { named } from '../../data/actions.ts';
import { type ApiError, api, enc } from '../../data/api.ts';
import { hrefOf } from '../../data/router.ts';
import type { Operation, Status } from '../../data/types.ts';
import { Dialog } from '../dialog.tsx';
import { Icon } from '../icons.tsx';
import { number } from '../time.tsx';
import { ReasonFields } from './job-actions.tsx';
import { Progress, wordOf } from './status.tsx';

type BulkAction = 'resume' | 'retry' | 'cancel';

export interface BulkFilter {
  ids?: string[];
  status?: Status[];
  type?: string;
  queue?: string;
  target_id?: string;
  priority?: string;
  hold_kind?: string;
  created_after?: string;
  created_before?: string;
  parent_id?: string;
  search?: string;
  payload?: string;
}

interface DryRun {
  matched: number;
  not_eligible: { status: Status; count: number }[];
}

const verbs: Record<BulkAction, { label: string; past: string; explain: string; icon: 'resume' | 'again' | 'cancel' }> =
  {
    resume: {
      label: 'Resume',
      past: 'resumed',
      icon: 'resume',
      explain: 'Paused and failed jobs run again, each first in its lane, in the order of their lanes.',
    },
    retry: {
      label: 'Retry',
      past: 'retried',
      icon: 'again',
      explain:
        'Failed jobs run again with a fresh set of attempts. Each goes first in its lane, and lanes keep their order.',
    },
    cancel: {
      label: 'Cancel',
      past: 'canceled',
      icon: 'cancel',
      explain: 'Ends every job that has not ended. Running handlers are asked to stop. This cannot be undone.',
    },
  };

/** Why an action does not change a job. */
function whyNot(action: BulkAction, status: Status): string {
  if (action === 'cancel') return 'has ended';
  if (status === 'PAUSED') return 'is paused, not failed';
  if (status === 'RUNNING' || status === 'QUEUED' || status === 'PENDING' || status === 'WAITING') return 'is not held';
  return 'does not wait for a person';
}

interface BulkButtonProps {
  action: BulkAction;
  filter: BulkFilter;
  label: string;
  onDone?: () => void;
  quiet?: boolean;
}

export function BulkButton({ action, filter, label, onDone, quiet = false }: BulkButtonProps) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" class={quiet ? 'button button-quiet' : 'button'} onClick={() => setOpen(true)}>
        <Icon name={verbs[action].icon} size={14} /> {label}
      </button>
      {open && (
        <BulkDialog
          action={action}
          filter={filter}
          onClose={() => {
            setOpen(false);
            onDone?.();
          }}
        />
      )}
    </>
  );
}

function BulkDialog({ action, filter, onClose }: { action: BulkAction; filter: BulkFilter; onClose: () => void }) {
  const [dryRun, setDryRun] = useState<DryRun>();
  const [operation, setOperation] = useState<Operation>();
  const [error, setError] = useState<string>();
  const verb = verbs[action];
  useEffect(() => {
    const abort = new AbortController();
    api<DryRun>('/operations', { method: 'POST', body: { action, filter, dry_run: true }, signal: abort.signal }).then(
      setDryRun,
      (problem) => {
        if (!abort.signal.aborted) setError((problem as ApiError).message);
      },
    );
    return () => abort.abort();
  }, []);
  const start = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.target as HTMLFormElement);
    const reason = String(form.get('reason') ?? '').trim();
    const body = { action, filter, canary: form.has('canary'), ...named({ reason }) };
    try {
      setOperation(await api<Operation>('/operations', { method: 'POST', body }));
    } catch (problem) {
      setError((problem as ApiError).message);
    }
  };
  const count = dryRun?.matched ?? 0;
  return (
    <Dialog title={`${verb.label} jobs`} onClose={onClose}>
      {error && (
        <p class="field-error" role="alert">
          {error}
        </p>
      )}
      {operation ? (
        <OperationProgress first={operation} onClose={onClose} />
      ) : dryRun === undefined ? (
        !error && <p class="muted">Counting the jobs that match…</p>
      ) : (
        <form onSubmit={start}>
          <p class="bulk-count">
            <strong>{number(count)}</strong> {count === 1 ? 'job' : 'jobs'} will be {verb.past}
          </p>
          <FilterText filter={filter} />
          <p>{verb.explain}</p>
          {dryRun.not_eligible.length > 0 && (
            <div class="note">
              <strong>Left alone</strong>
              <ul>
                {dryRun.not_eligible.map(({ status, count: left }) => (
                  <li key={status}>
                    {number(left)} {wordOf(status).toLowerCase()}: {whyNot(action, status)}
                  </li>
                ))}
              </ul>
            </div>
          )}
          {action !== 'cancel' && count > 1 && (
            <label class="check">
              <input type="checkbox" name="canary" />
              <span>Canary: {verb.label.toLowerCase()} the oldest first, and the others only if it succeeds</span>
            </label>
          )}
          {count > 0 && <ReasonFields />}
          <footer class="dialog-foot">
            <button type="button" class="button" onClick={onClose}>
              Back
            </button>
            <button
              type="submit"
              class={action === 'cancel' ? 'button button-danger' : 'button button-main'}
              disabled={count === 0}
            >
              {verb.label} {number(count)} {count === 1 ? 'job' : 'jobs'}
            </button>
          </footer>
        </form>
      )}
    </Dialog>
  );
}

export function FilterText({ filter }: { filter: object }) {
  const parts = Object.entries(filter).filter(([, value]) => value !== undefined);
  if (parts.length === 0) return <p class="muted small">All jobs of the tenant</p>;
  return (
    <p class="chips">
      {parts.map(([name, value]) => (
        <span key={name} class="chip">
          {name === 'ids'
            ? `${(value as string[]).length} selected`
            : `${name.replaceAll('_', ' ')}: ${Array.isArray(value) ? value.join(', ') : String(value)}`}
        </span>
      ))}
    </p>
  );
}

function outcomeText({ status, canary }: Operation): string {
  if (canary === 'waiting') return 'One job runs first; the others wait for its success. Operations lists this.';
  if (canary === 'failed') return 'The canary did not succeed: the other jobs stay on hold.';
  if (status === 'running') return 'It continues if you close this. Operations lists it.';
  return status === 'finished' ? 'Finished.' : 'It ended without acting on all of them.';
}

export function LeftAlone({ operation: { failed } }: { operation: Operation }) {
  if (failed === 0) return null;
  return (
    <span class="tone-fail">
      , {number(failed)} left alone because {failed === 1 ? 'it' : 'they'} had changed
    </span>
  );
}

export function CanaryJob({ operation }: { operation: Operation }) {
  if (operation.canary_job_id === null) return null;
  return (
    <p class="small">
      Canary {operation.canary}: <a href={hrefOf(`/jobs/${operation.canary_job_id}`)}>the job</a>
    </p>
  );
}

const pollMs = 700;

function OperationProgress({ first, onClose }: { first: Operation; onClose: () => void }) {
  const [operation, setOperation] = useState(first);
  const [error, setError] = useState<string>();
  useEffect(() => {
    if (operation.status !== 'running') return;
    const timer = setTimeout(() => {
      api<Operation>(`/operations/${enc(first.id)}`).then(
        (next) => {
          setError(undefined);
          setOperation(next);
        },
        (problem) => {
          setError((problem as ApiError).message);
          setOperation({ ...operation });
        },
      );
    }, pollMs);
    return () => clearTimeout(timer);
  }, [operation]);
  return (
    <div aria-live="polite">
      <p class="bulk-count">
        <strong>{number(operation.done)}</strong> of {number(operation.matched)} done
        <LeftAlone operation={operation} />
      </p>
      <Progress value={operation.progress} message="Progress of the operation" />
      {error && <p class="field-error">{error}</p>}
      <p class="muted small">{outcomeText(operation)}</p>
      <CanaryJob operation={operation} />
      <footer class="dialog-foot">
        <button type="button" class="button" onClick={onClose}>
          Close
        </button>
      </footer>
    </div>
  );
}
