// The event log as a live tail, with filters. It keeps the newest events.
import { useEffect, useRef, useState } from 'preact/hooks';
import { type ApiError, api, enc, queryOf } from '../data/api.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { live } from '../data/live.ts';
import { hrefOf, setSearch, usePlace } from '../data/router.ts';
import type { LiveEvent } from '../data/types.ts';
import { Empty, ErrorNote } from '../parts/feedback.tsx';
import { Icon } from '../parts/icons.tsx';
import { clock, exact } from '../parts/time.tsx';

const maxShown = 500;
// Events that arrive together are drawn together.
const drawMs = 200;

interface Page {
  events: LiveEvent[];
  next_cursor: string | null;
}

export function EventsPage() {
  useTitle('Events');
  const { search } = usePlace();
  const filter = {
    type: search.get('type') ?? '',
    target_id: search.get('target_id') ?? '',
    job_id: search.get('job_id') ?? '',
    actor: search.get('actor') ?? '',
  };
  const key = queryOf(filter);
  const [events, setEvents] = useState<LiveEvent[]>();
  const [cursor, setCursor] = useState<string | null>(null);
  const [error, setError] = useState<ApiError>();
  const [paused, setPaused] = useState(false);
  const isPaused = useRef(paused);
  isPaused.current = paused;
  const [held, setHeld] = useState(0);
  const waiting = useRef<LiveEvent[]>([]);

  useEffect(() => {
    const abort = new AbortController();
    setEvents(undefined);
    setError(undefined);
    waiting.current = [];
    const load = () =>
      api<Page>(`/events${queryOf({ ...filter, limit: 100 })}`, { signal: abort.signal }).then(
        (page) => {
          setEvents(page.events);
          setCursor(page.next_cursor);
        },
        (problem) => {
          if (!abort.signal.aborted) setError(problem as ApiError);
        },
      );
    void load();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const draw = () => {
      timer = undefined;
      if (isPaused.current) return setHeld(waiting.current.length);
      const fresh = waiting.current.splice(0).reverse();
      setHeld(0);
      setEvents((before) => {
        const known = new Set(before?.slice(0, maxShown).map((event) => event.id));
        return [...fresh.filter((event) => !known.has(event.id)), ...(before ?? [])].slice(0, maxShown);
      });
    };
    const stop = live.subscribe((event) => {
      if (event === 'reset') return void load();
      if (!matches(event, filter)) return;
      waiting.current.push(event);
      if (waiting.current.length > maxShown) waiting.current.shift();
      timer ??= setTimeout(draw, drawMs);
    });
    return () => {
      stop();
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, paused]);

  const older = async () => {
    const page = await api<Page>(`/events${queryOf({ ...filter, limit: 200, cursor: cursor ?? undefined })}`);
    setCursor(page.next_cursor);
    setEvents((before) => [...(before ?? []), ...page.events]);
  };
  const field = (name: keyof typeof filter, label: string, placeholder: string) => (
    <label class="filter">
      <span>{label}</span>
      <input
        key={`${name}:${filter[name]}`}
        placeholder={placeholder}
        defaultValue={filter[name]}
        onChange={(event) => setSearch({ [name]: (event.target as HTMLInputElement).value.trim() })}
      />
    </label>
  );
  return (
    <>
      <header class="page-head">
        <h1>Events</h1>
        <div class="page-actions">
          <button type="button" class="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>
            <Icon name={paused ? 'resume' : 'pause'} size={14} />
            {paused ? `Follow${held > 0 ? ` (${held} new)` : ''}` : 'Stop updating'}
          </button>
        </div>
      </header>
      <div class="filters">
        {field('type', 'Type', 'job.failed,job.paused')}
        {field('target_id', 'Target', 'exact')}
        {field('job_id', 'Job', 'id')}
        {field('actor', 'Actor', 'key:…')}
      </div>
      {error && <ErrorNote error={error} />}
      {events && events.length === 0 && cursor === null ? (
        <Empty icon="events" title="No events match">
          <p>New ones appear here as they happen.</p>
        </Empty>
      ) : (
        <ol class="event-tail">
          {events?.map((event) => (
            <EventLine key={event.id} event={event} />
          ))}
        </ol>
      )}
      {cursor !== null && events && (
        <button
          type="button"
          class="button more-button"
          onClick={() => void older().catch((problem) => setError(problem as ApiError))}
        >
          Older events
        </button>
      )}
    </>
  );
}

function matches(event: LiveEvent, filter: Record<'type' | 'target_id' | 'job_id' | 'actor', string>): boolean {
  if (filter.type !== '' && !filter.type.split(',').includes(event.type)) return false;
  if (filter.target_id !== '' && event.target_id !== filter.target_id) return false;
  if (filter.job_id !== '' && event.job_id !== filter.job_id) return false;
  return filter.actor === '' || event.actor === filter.actor;
}

function EventLine({ event }: { event: LiveEvent }) {
  const tone = /failed|expired|unresponsive/.test(event.type)
    ? 'fail'
    : /paused|cancel/.test(event.type)
      ? 'hold'
      : /completed|resolved/.test(event.type)
        ? 'done'
        : /started|granted/.test(event.type)
          ? 'run'
          : 'wait';
  return (
    <li class={`event-line event-${tone}`}>
      <time dateTime={event.at} title={exact(event.at)}>
        {clock(event.at)}
      </time>
      <code class="event-type">{event.type}</code>
      <span class="event-about">
        {event.target_id && <a href={hrefOf(`/targets/${enc(event.target_id)}`)}>{event.target_id}</a>}
        {event.job_id && (
          <a class="muted" href={hrefOf(`/jobs/${event.job_id}`)}>
            …{event.job_id.slice(-8)}
          </a>
        )}
      </span>
      <span class="muted small clip">{event.actor}</span>
      <span class="muted small clip">{event.data ? summaryOf(event.data) : ''}</span>
    </li>
  );
}

function summaryOf(data: Record<string, unknown>): string {
  const { message, reason, error, phase, percent, progress } = data as Record<
    string,
    { message?: string } | string | number | undefined
  >;
  const text =
    reason ?? message ?? (typeof error === 'object' ? error?.message : error) ?? phase ?? percent ?? progress;
  return text === undefined ? '' : String(text);
}
