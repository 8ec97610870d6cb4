// A lane: its name, its head (the running job, or the job that holds it), and the jobs in line.
import { useState } from 'preact/hooks';
import { actionable, pauseTarget, report, resumeTarget } from '../../data/actions.ts';
import { ApiError, enc } from '../../data/api.ts';
import { describeWaiting } from '../../data/jobs/descriptions.ts';
import { hrefOf } from '../../data/router.ts';
import { may } from '../../data/session.ts';
import type { HeadJob, Lane, LaneJob } from '../../data/types.ts';
import { Dialog, DialogFoot, Field } from '../dialog.tsx';
import { Icon } from '../icons.tsx';
import { Ago, Sentence, Since } from '../time.tsx';
import { CanaryButton, CanaryMark, canTryCanary } from './canary.tsx';
import { JobActions, ReasonFields } from './job-actions.tsx';
import { holdSentence, Progress, StatusMark, toneOf, wordOf } from './status.tsx';

export function LaneRow({ lane, onChange }: { lane: Lane; onChange: () => void }) {
  const held = lane.hold?.by === 'job';
  const state = held
    ? lane.head?.status === 'ERROR'
      ? 'fail'
      : 'hold'
    : lane.paused && lane.canary_job_id === null
      ? 'hold'
      : lane.head?.status === 'RUNNING'
        ? 'run'
        : 'wait';
  return (
    <article class={`lane lane-${state}`} aria-label={`Target ${lane.id}`}>
      <div class="lane-name">
        <a href={hrefOf(`/targets/${enc(lane.id)}`)}>{lane.id}</a>
        <Labels labels={lane.labels} />
      </div>
      <div class="lane-track">
        <Head lane={lane} />
        <Line lane={lane} />
      </div>
      <LaneActions lane={lane} onChange={onChange} />
    </article>
  );
}

export function Labels({ labels }: { labels: Record<string, string> }) {
  const entries = Object.entries(labels);
  if (entries.length === 0) return null;
  return (
    <span class="labels">
      {entries.slice(0, 3).map(([name, value]) => (
        <span key={name} class="label" title={`${name}: ${value}`}>
          {value === '' ? name : value}
        </span>
      ))}
      {entries.length > 3 && <span class="muted small">+{entries.length - 3}</span>}
    </span>
  );
}

function Head({ lane }: { lane: Lane }) {
  const { head } = lane;
  if (head === null) {
    return lane.paused ? <PauseMark lane={lane} /> : <span class="lane-free">Free</span>;
  }
  return (
    <>
      {lane.canary_job_id !== null ? <CanaryMark lane={lane} /> : lane.paused && <PauseMark lane={lane} />}
      <HeadCard head={head} />
    </>
  );
}

function HeadCard({ head }: { head: HeadJob }) {
  const tone = toneOf(head.status);
  return (
    <a class={`head head-${tone}`} href={hrefOf(`/jobs/${head.id}`)}>
      <span class="head-top">
        <StatusMark status={head.status} />
        <code class="head-type">{head.type}</code>
        <span class="head-time">
          <Since at={head.held_since ?? head.started_at ?? head.created_at} />
        </span>
      </span>
      {head.hold && head.status !== 'RUNNING' && <span class="head-why">{holdSentence(head.hold)}</span>}
      <HeadWait head={head} />
      {head.status === 'RUNNING' && (
        <span class="head-run">
          <Progress value={head.progress ?? 0} message={head.progress_message} />
          <span class="head-message">{head.progress_message ?? ''}</span>
        </span>
      )}
    </a>
  );
}

/** The wait of a WAITING head, and its end. */
export function HeadWait({ head }: { head: LaneJob }) {
  if (head.status !== 'WAITING' || head.waiting === null) return null;
  const text = describeWaiting(head.waiting);
  return (
    <span class="head-why muted" title={text}>
      <Sentence text={text} />
    </span>
  );
}

function PauseMark({ lane }: { lane: Lane }) {
  const by = lane.paused_by === null ? '' : ` by ${lane.paused_by}`;
  return (
    <span class="pause-mark" title={lane.hold?.detail ?? 'Paused'}>
      <Icon name="pause" size={14} />
      <span>
        Paused{by}
        {lane.pause_reason && <>: {lane.pause_reason}</>}
        {lane.paused_until && (
          <>
            , ends <Ago at={lane.paused_until} />
          </>
        )}
      </span>
    </span>
  );
}

/** The line: one tile per waiting job, in the order in which they will run, and their number. */
function Line({ lane }: { lane: Lane }) {
  if (lane.waiting === 0) return <span class="line-empty">{lane.head === null ? '' : 'nothing waits'}</span>;
  return (
    <>
      <ol class="line" aria-label="Next in line">
        {lane.next.map((job) => (
          <li key={job.id}>
            <Tile job={job} />
          </li>
        ))}
      </ol>
      <span class="line-more">
        {lane.waiting}
        {lane.waiting_exact ? '' : '+'} waiting
      </span>
    </>
  );
}

function Tile({ job }: { job: LaneJob }) {
  const text = `${job.type}, ${wordOf(job.status).toLowerCase()}, ${job.priority.toLowerCase()} priority`;
  return (
    <a
      class={`tile tile-${toneOf(job.status)} tile-${job.priority}`}
      href={hrefOf(`/jobs/${job.id}`)}
      title={text}
      aria-label={text}
    >
      {initials(job.type)}
    </a>
  );
}

/** `demo.pipeline` → `pi`: enough to distinguish neighbours. */
function initials(type: string): string {
  return (type.split(/[.:/]/).at(-1) ?? type).slice(0, 2);
}

function LaneActions({ lane, onChange }: { lane: Lane; onChange: () => void }) {
  const [asks, setAsks] = useState(false);
  const { head } = lane;
  if (!may('control')) return <div class="lane-actions" />;
  return (
    <div class="lane-actions">
      {head && lane.hold?.by === 'job' && head.status !== 'RUNNING' && (
        <JobActions job={actionable(head, lane.id)} holdsLane onDone={onChange} compact />
      )}
      {canTryCanary(lane) && <CanaryButton targetId={lane.id} onDone={onChange} compact />}
      {lane.paused ? (
        <button type="button" class="button" onClick={() => void resumeTarget(lane.id).then(onChange, report)}>
          <Icon name="resume" size={14} /> Resume target
        </button>
      ) : (
        <button
          type="button"
          class="icon-button"
          aria-label={`Pause target ${lane.id}`}
          title="Pause target"
          onClick={() => setAsks(true)}
        >
          <Icon name="pause" size={14} />
        </button>
      )}
      {asks && <PauseDialog targetId={lane.id} onClose={() => setAsks(false)} onDone={onChange} />}
    </div>
  );
}

export function PauseDialog({
  targetId,
  onClose,
  onDone,
}: {
  targetId: string;
  onClose: () => void;
  onDone: () => void;
}) {
  const [error, setError] = useState<string>();
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.target as HTMLFormElement);
    const until = String(form.get('until') ?? '');
    try {
      await pauseTarget(targetId, {
        reason: String(form.get('reason') ?? '').trim(),
        ...(until !== '' && { until: new Date(until).toISOString() }),
      });
      onClose();
      onDone();
    } catch (problem) {
      setError(problem instanceof ApiError ? problem.message : String(problem));
    }
  };
  return (
    <Dialog title={`Pause ${targetId}`} onClose={onClose}>
      <form onSubmit={submit}>
        <p>A running job continues; no other starts until the target is resumed.</p>
        <ReasonFields />
        <Field label="Until" hint="Your local time. Leave it empty to pause until somebody resumes it.">
          <input name="until" type="datetime-local" />
        </Field>
        <DialogFoot error={error} onClose={onClose}>
          Pause target
        </DialogFoot>
      </form>
    </Dialog>
  );
}
