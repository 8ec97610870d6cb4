// The canary: one job of a stopped lane runs, the others wait for its success.
import { useState } from 'preact/hooks';
import { startCanary } from '../../data/actions.ts';
import { ApiError } from '../../data/api.ts';
import { hrefOf } from '../../data/router.ts';
import { may } from '../../data/session.ts';
import type { Lane } from '../../data/types.ts';
import { Dialog, DialogFoot } from '../dialog.tsx';
import { Icon } from '../icons.tsx';
import { ReasonFields } from './job-actions.tsx';

/** The lane is stopped and something waits; with nothing behind it a canary is the same as a resume. */
export function canTryCanary(lane: Lane): boolean {
  if (lane.canary_job_id !== null) return false;
  if (lane.waiting === 0) return false;
  if (lane.hold?.by === 'job') return lane.head !== null && lane.head.status !== 'RUNNING';
  return lane.paused && lane.head === null;
}

interface CanaryProps {
  targetId: string;
  onDone: () => void;
  compact?: boolean;
}

export function CanaryButton({ targetId, onDone, compact = false }: CanaryProps) {
  const [open, setOpen] = useState(false);
  if (!may('control')) return null;
  return (
    <>
      <button
        type="button"
        class="button"
        title="Let one job run; the lane resumes if it succeeds"
        onClick={() => setOpen(true)}
      >
        <Icon name="canary" size={14} />
        <span class={compact ? 'wide-only' : ''}>Try one</span>
      </button>
      {open && <CanaryDialog targetId={targetId} onClose={() => setOpen(false)} onDone={onDone} />}
    </>
  );
}

function CanaryDialog({ targetId, onClose, onDone }: CanaryProps & { onClose: () => void }) {
  const [error, setError] = useState<string>();
  const [busy, setBusy] = useState(false);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      await startCanary(targetId, String(new FormData(event.target as HTMLFormElement).get('reason') ?? '').trim());
      onClose();
      onDone();
    } catch (problem) {
      setError(problem instanceof ApiError ? problem.message : String(problem));
      setBusy(false);
    }
  };
  return (
    <Dialog title={`Try one job on ${targetId}`} onClose={onClose}>
      <form onSubmit={submit}>
        <p>
          Exactly one job runs: the one that holds the lane, or the next in line. If it succeeds, the lane resumes. If
          it fails, is paused or canceled, the lane stays stopped.
        </p>
        <ReasonFields />
        <DialogFoot error={error} onClose={onClose} busy={busy}>
          Try one job
        </DialogFoot>
      </form>
    </Dialog>
  );
}

export function CanaryMark({ lane }: { lane: Lane }) {
  if (lane.canary_job_id === null) return null;
  const by = lane.paused_by === null ? '' : `, started by ${lane.paused_by}`;
  return (
    <a
      class="canary-mark"
      href={hrefOf(`/jobs/${lane.canary_job_id}`)}
      title={`Only this job may run${by}. The lane resumes if it succeeds.`}
    >
      <Icon name="canary" size={14} />
      <span>Canary</span>
    </a>
  );
}
