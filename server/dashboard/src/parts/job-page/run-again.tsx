// Enqueues a job like this one, with a payload that can be edited first.
import { useState } from 'preact/hooks';
import { named } from '../../data/actions.ts';
import { type ApiError, api } from '../../data/api.ts';
import { navigate } from '../../data/router.ts';
import type { Job } from '../../data/types.ts';
import { Dialog, DialogFoot, Field } from '../dialog.tsx';
import { Icon } from '../icons.tsx';
import { toast } from '../shell/toasts.tsx';

export function RunAgain({ job }: { job: Job }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <button type="button" class="button" onClick={() => setOpen(true)}>
        <Icon name="again" size={14} /> Run again
      </button>
      {open && <RunAgainDialog job={job} onClose={() => setOpen(false)} />}
    </>
  );
}

function RunAgainDialog({ job, onClose }: { job: Job; onClose: () => void }) {
  const [error, setError] = useState<string>();
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.target as HTMLFormElement);
    let payload: unknown;
    try {
      payload = JSON.parse(String(form.get('payload')));
    } catch (problem) {
      return setError(`The payload is not JSON: ${(problem as Error).message}`);
    }
    try {
      const made = await api<Job>('/jobs', { method: 'POST', body: named({ ...copyOf(job), payload }) });
      onClose();
      toast(`Enqueued ${job.type}`);
      navigate(`/jobs/${made.id}`);
    } catch (problem) {
      setError((problem as ApiError).message);
    }
  };
  return (
    <Dialog title="Run again" onClose={onClose} wide>
      <form onSubmit={submit}>
        <p>
          A new <code>{job.type}</code> job with the same settings
          {job.target_id !== null && (
            <>
              , at the end of the lane of <strong>{job.target_id}</strong>
            </>
          )}
          . This one stays as it is.
        </p>
        <Field label="Payload">
          <textarea
            name="payload"
            class="mono"
            rows={12}
            spellcheck={false}
            defaultValue={JSON.stringify(job.payload, null, 2)}
          />
        </Field>
        <DialogFoot error={error} onClose={onClose}>
          Enqueue job
        </DialogFoot>
      </form>
    </Dialog>
  );
}

function copyOf(job: Job): Record<string, unknown> {
  return {
    type: job.type,
    queue: job.queue,
    priority: job.priority,
    max_attempts: job.max_attempts,
    on_error: job.on_error,
    cost_units: job.cost_units,
    target_id: job.target_id ?? undefined,
    timeout_seconds: job.timeout_seconds ?? undefined,
    constraints: job.constraints ?? undefined,
    webhook_url: job.webhook_url ?? undefined,
    token_limit: job.usage.token_limit ?? undefined,
  };
}
