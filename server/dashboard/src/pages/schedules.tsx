// Schedules: next and last runs, run now, pause.
import { report } from '../data/actions.ts';
import { api, enc } from '../data/api.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { useQuery } from '../data/query.ts';
import { hrefOf, navigate } from '../data/router.ts';
import { may } from '../data/session.ts';
import type { Job, LiveEvent, Schedule } from '../data/types.ts';
import { Empty, Loaded } from '../parts/feedback.tsx';
import { Icon } from '../parts/icons.tsx';
import { toast } from '../parts/shell/toasts.tsx';
import { Ago, exact } from '../parts/time.tsx';

export function SchedulesPage() {
  useTitle('Schedules');
  const schedules = useQuery(
    'schedules',
    (signal) => api<{ schedules: Schedule[] }>('/schedules?limit=200', { signal }),
    {
      on: (event) => event.type.startsWith('schedule.'),
    },
  );
  const problems = useQuery(
    'schedule-problems',
    (signal) => api<{ events: LiveEvent[] }>('/events?type=schedule.missed,schedule.failed&limit=100', { signal }),
    { on: (event) => event.type.startsWith('schedule.') },
  );
  const problemOf = (schedule: Schedule) =>
    problems.data?.events.find((event) => event.data?.schedule_id === schedule.id);
  return (
    <>
      <header class="page-head">
        <h1>Schedules</h1>
      </header>
      <Loaded query={schedules}>
        {({ schedules: all }) =>
          all.length === 0 ? (
            <Empty icon="schedules" title="No schedules yet">
              <p>
                A schedule enqueues its job at each of its times, exactly once: POST /api/schedules with a name, a cron
                expression and a job.
              </p>
            </Empty>
          ) : (
            <div class="stack">
              {all.map((schedule) => (
                <ScheduleCard
                  key={schedule.id}
                  schedule={schedule}
                  problem={problemOf(schedule)}
                  onChange={schedules.refresh}
                />
              ))}
            </div>
          )
        }
      </Loaded>
    </>
  );
}

const missedTexts: Record<string, string> = {
  skip: 'missed runs are skipped',
  latest: 'the latest missed run is made up for',
  all: 'all missed runs are made up for',
};

/** The last run that was missed or refused, from the log. */
function ScheduleProblem({ event }: { event: LiveEvent | undefined }) {
  if (event === undefined) return null;
  const { missed, message } = (event.data ?? {}) as { missed?: number; message?: string };
  return (
    <p class={event.type === 'schedule.failed' ? 'note note-fail' : 'note note-hold'}>
      <strong>
        {event.type === 'schedule.failed'
          ? 'Could not enqueue'
          : `Missed ${missed === 1 ? 'one run' : `${missed ?? 'some'} runs`}`}
      </strong>{' '}
      <Ago at={event.at} />
      {message && <>: {message}</>}
    </p>
  );
}

interface ScheduleCardProps {
  schedule: Schedule;
  problem: LiveEvent | undefined;
  onChange: () => void;
}

function ScheduleCard({ schedule, problem, onChange }: ScheduleCardProps) {
  const act = async (verb: 'pause' | 'resume') => {
    await api(`/schedules/${enc(schedule.id)}/${verb}`, { method: 'POST' });
    toast(verb === 'pause' ? `Paused ${schedule.name}` : `Resumed ${schedule.name}`, {
      ...(verb === 'pause' && { undo: () => void act('resume').catch(report) }),
    });
    onChange();
  };
  const runNow = async () => {
    const { job } = await api<{ job: Job }>(`/schedules/${enc(schedule.id)}/run`, { method: 'POST' });
    toast(`Enqueued the job of ${schedule.name}`);
    navigate(`/jobs/${job.id}`);
  };
  const { type, target_id: target } = schedule.job as { type?: string; target_id?: string };
  return (
    <article class={schedule.paused ? 'card schedule schedule-paused' : 'card schedule'} aria-label={schedule.name}>
      <header class="schedule-head">
        <div>
          <h2>{schedule.name}</h2>
          <p class="small">
            <code>{schedule.cron}</code> <span class="muted">{schedule.timezone}</span>
          </p>
          <p class="small">
            Enqueues <code>{type}</code>
            {target && (
              <>
                {' '}
                for <a href={hrefOf(`/targets/${enc(target)}`)}>{target}</a>
              </>
            )}
            <span class="muted">; {missedTexts[schedule.missed] ?? schedule.missed}</span>
          </p>
        </div>
        <div class="actions">
          {may('enqueue') && (
            <button type="button" class="button" onClick={() => void runNow().catch(report)}>
              <Icon name="resume" size={14} /> Run now
            </button>
          )}
          {may('control') && (
            <button
              type="button"
              class="button"
              onClick={() => void act(schedule.paused ? 'resume' : 'pause').catch(report)}
            >
              <Icon name={schedule.paused ? 'resume' : 'pause'} size={14} /> {schedule.paused ? 'Resume' : 'Pause'}
            </button>
          )}
        </div>
      </header>
      <ScheduleProblem event={problem} />
      {schedule.paused ? (
        <p class="note note-hold">
          Paused by {schedule.paused_by} <Ago at={schedule.paused_at} />. It continues with the next time after it is
          resumed.
        </p>
      ) : (
        <ol class="runs" aria-label="Next runs">
          {schedule.next_runs.map((at, n) => (
            <li key={at} class={n === 0 ? 'run run-next' : 'run'} title={exact(at)}>
              <strong>
                {new Date(at).toLocaleTimeString(undefined, { hour: '2-digit', minute: '2-digit', hour12: false })}
              </strong>
              <span class="muted small">
                {n === 0 ? (
                  <Ago at={at} />
                ) : (
                  new Date(at).toLocaleDateString(undefined, { weekday: 'short', day: 'numeric', month: 'short' })
                )}
              </span>
            </li>
          ))}
        </ol>
      )}
      <p class="muted small">
        Last run:{' '}
        {schedule.last_job_id ? (
          <a href={hrefOf(`/jobs/${schedule.last_job_id}`)}>
            <Ago at={schedule.last_fired_at} />
          </a>
        ) : (
          'not yet'
        )}
        {schedule.author && <>. Made by {schedule.author}</>}
      </p>
    </article>
  );
}
