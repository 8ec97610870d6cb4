// The history of a job with authors and reasons, and the error of every attempt with its stack.
import { useState } from 'preact/hooks';
import { describeEvent } from '../../data/jobs/descriptions.ts';
import type { Job, JobError, LiveEvent } from '../../data/types.ts';
import { clock, exact, Sentence, span } from '../time.tsx';

const noise = /^job\.(progress|usage|lease_renewed|heartbeat)/;

export function History({ events, cut }: { events: readonly LiveEvent[]; cut: boolean }) {
  const [all, setAll] = useState(false);
  const shown = all ? events : events.filter((event) => !noise.test(event.type));
  const hidden = events.length - shown.length;
  return (
    <>
      <ol class="history">
        {[...shown].reverse().map((event) => (
          <HistoryLine key={event.id} event={event} />
        ))}
      </ol>
      {(hidden > 0 || all) && (
        <button type="button" class="link" onClick={() => setAll(!all)}>
          {all ? 'Hide progress' : `Show ${hidden} progress events`}
        </button>
      )}
      {cut && <p class="muted small">Only the first {events.length} events are shown.</p>}
    </>
  );
}

function HistoryLine({ event }: { event: LiveEvent }) {
  const { author, reason } = (event.data ?? {}) as { author?: string; reason?: string };
  const error = event.data?.error as JobError | undefined;
  return (
    <li class={`history-line history-${toneOf(event)}`}>
      <span class="history-what">
        <Sentence text={words(event)} />
      </span>
      <span class="muted small">
        {author ? `${author} (${event.actor})` : event.actor} ·{' '}
        <time dateTime={event.at} title={exact(event.at)}>
          {clock(event.at)}
        </time>
      </span>
      {reason && <span class="quote">{reason}</span>}
      {error?.message && !reason && <span class="quote">{error.message}</span>}
    </li>
  );
}

function toneOf(event: LiveEvent): string {
  if (/failed|expired|unresponsive/.test(event.type)) return 'fail';
  if (/paused|pause_|cancel_/.test(event.type)) return 'hold';
  if (/completed|resolved/.test(event.type)) return 'done';
  if (/started|granted|resumed/.test(event.type)) return 'run';
  return 'wait';
}

function words(event: LiveEvent): string {
  if (event.type === 'job.started' && event.attempt !== null) return `Started, attempt ${event.attempt}`;
  return describeEvent(event);
}

interface Failure {
  attempt: number | null;
  at: string;
  error: JobError;
}

export function ErrorsView({ job, events }: { job: Job; events: readonly LiveEvent[] }) {
  const failures: Failure[] = events.flatMap((event) => {
    const error = event.data?.error as JobError | undefined;
    const ends = event.type === 'job.failed' || event.type === 'job.retrying' || event.type === 'job.lease_expired';
    return ends && error?.message ? [{ attempt: event.attempt, at: event.at, error }] : [];
  });
  if (failures.length === 0) return null;
  const latest = failures.at(-1);
  return (
    <section class="card card-fail" aria-label="Errors">
      <h2>{failures.length === 1 ? 'Error' : `Errors of ${failures.length} attempts`}</h2>
      {[...failures].reverse().map((failure) => (
        <ErrorView
          key={`${failure.at}${failure.attempt}`}
          failure={failure}
          open={failure === latest && job.status === 'ERROR'}
        />
      ))}
    </section>
  );
}

function ErrorView({ failure: { attempt, at, error }, open }: { failure: Failure; open: boolean }) {
  return (
    <details class="error-view" open={open}>
      <summary>
        <span class="chip">{error.code}</span> <strong>{error.message}</strong>{' '}
        <span class="muted small">
          attempt {attempt},{' '}
          <time dateTime={at} title={exact(at)}>
            {span(Math.max(0, Date.now() - Date.parse(at)))} ago
          </time>
        </span>
      </summary>
      {error.stack ? <pre>{error.stack}</pre> : <p class="muted small">No stack was recorded.</p>}
      <Causes cause={error.cause} />
    </details>
  );
}

function Causes({ cause }: { cause: unknown }) {
  if (cause === null || cause === undefined) return null;
  const {
    message,
    stack,
    cause: deeper,
  } = (typeof cause === 'object' ? cause : { message: String(cause) }) as JobError;
  return (
    <>
      <p class="small">
        Caused by <strong>{message}</strong>
      </p>
      {stack && <pre>{stack}</pre>}
      <Causes cause={deeper} />
    </>
  );
}
