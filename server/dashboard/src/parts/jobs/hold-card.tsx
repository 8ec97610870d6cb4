// One hold: its target, job, reason, author and time, the jobs behind it, and the actions.
import { enc } from '../../data/api.ts';
import { hrefOf } from '../../data/router.ts';
import type { Attention } from '../../data/types.ts';
import { Ago, number, Since } from '../time.tsx';
import { CanaryButton } from './canary.tsx';
import { JobActions } from './job-actions.tsx';
import { holdWord, StatusMark, toneOf } from './status.tsx';

type HoldEntry = Attention['holds']['newest'][number];

export function HoldCard({
  hold: { job, waiting, oldest_waiting_at: oldest },
  onChange,
}: {
  hold: HoldEntry;
  onChange: () => void;
}) {
  const holdsLane = job.target_id !== null && job.on_error === 'block';
  return (
    <article class={`hold hold-${toneOf(job.status)}`} aria-label={`${job.type} on ${job.target_id ?? 'no target'}`}>
      <header class="hold-head">
        <h2>
          {job.target_id === null ? (
            <a href={hrefOf(`/jobs/${job.id}`)}>{job.type}</a>
          ) : (
            <a href={hrefOf(`/targets/${enc(job.target_id)}`)}>{job.target_id}</a>
          )}
        </h2>
        <StatusMark status={job.status} />
        <span class="muted small">
          <Ago at={job.held_since} />
        </span>
      </header>
      <p class="hold-why">
        <a href={hrefOf(`/jobs/${job.id}`)}>
          <code>{job.type}</code>
        </a>{' '}
        {sentence(job)}
      </p>
      {job.hold?.reason && job.hold.kind !== 'drain' && <p class="quote">{job.hold.reason}</p>}
      {job.error?.stack && (
        <details class="stack-trace">
          <summary>
            {job.error.name ?? job.error.code}, attempt {job.attempts}
          </summary>
          <pre>{job.error.stack}</pre>
        </details>
      )}
      <footer class="hold-foot">
        {holdsLane && (
          <span class={waiting > 0 ? 'hold-waits' : 'hold-waits muted'}>
            {waiting === 0
              ? 'Nothing waits behind it'
              : `${waiting > 1000 ? 'More than 1,000 jobs wait' : waiting === 1 ? '1 job waits' : `${number(waiting)} jobs wait`} behind it`}
            {oldest && (
              <>
                , the oldest for <Since at={oldest} />
              </>
            )}
          </span>
        )}
        <div class="actions">
          <JobActions job={job} holdsLane={holdsLane} onDone={onChange} />
          {holdsLane && waiting > 0 && <CanaryButton targetId={job.target_id ?? ''} onDone={onChange} />}
        </div>
      </footer>
    </article>
  );
}

function sentence({ hold, attempts, usage }: HoldEntry['job']): string {
  if (!hold) return 'waits for a person';
  const by = hold.author ? ` by ${hold.author}` : '';
  switch (hold.kind) {
    case 'user':
      return `was paused${by}`;
    case 'drain':
      return `was paused by the drain of ${hold.author ?? 'a daemon'}`;
    case 'budget':
      if (hold.reason?.startsWith('Budget')) return hold.reason;
      return `passed its token limit: ${number(usage.tokens)} of ${usage.token_limit === null ? 'the tenant’s limit' : number(usage.token_limit)}`;
    case 'error':
      return `failed at attempt ${attempts}`;
    case 'dependency':
      return hold.reason ?? 'should run after a job that did not succeed';
    case 'handler':
      return `${holdWord(hold.kind).toLowerCase()}${by}`;
  }
}
