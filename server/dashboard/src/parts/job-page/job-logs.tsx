// The log lines of the handler, followed while the job runs.
import { useEffect, useRef, useState } from 'preact/hooks';
import { api, enc, queryOf } from '../../data/api.ts';
import { live } from '../../data/live.ts';
import type { Job, LogLine } from '../../data/types.ts';
import { clock, exact } from '../time.tsx';

interface Page {
  lines: LogLine[];
  next_cursor: string | null;
}

// A page left open on a job with many lines keeps the newest of them.
const maxLines = 2000;
const followMs = 1500;

export function JobLogs({ job }: { job: Job }) {
  const [lines, setLines] = useState<LogLine[]>([]);
  const [loaded, setLoaded] = useState(false);
  const cursor = useRef<string | undefined>(undefined);
  const busy = useRef(false);
  const running = job.status === 'RUNNING';
  const read = async () => {
    if (busy.current) return;
    busy.current = true;
    try {
      for (let more = true; more; ) {
        const page = await api<Page>(`/jobs/${enc(job.id)}/logs${queryOf({ cursor: cursor.current, limit: 500 })}`);
        cursor.current = page.next_cursor ?? cursor.current;
        if (page.lines.length > 0) setLines((before) => [...before, ...page.lines].slice(-maxLines));
        more = page.lines.length === 500;
      }
    } catch {
      // The next round tries again.
    }
    busy.current = false;
    setLoaded(true);
  };
  useEffect(() => void read(), [job.status]);
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => {
      if (!document.hidden) void read();
    }, followMs);
    const stop = live.subscribe((event) => {
      if (event !== 'reset' && event.job_id === job.id && event.to !== event.from) void read();
    });
    return () => {
      clearInterval(timer);
      stop();
    };
  }, [running]);
  return (
    <section class="card" aria-label="Logs">
      <h2>Logs {running && <span class="chip chip-live">following</span>}</h2>
      {loaded && lines.length === 0 ? (
        <p class="muted small">The handler logged nothing{running ? ' yet' : ''}.</p>
      ) : (
        <ol class="logs" tabIndex={0} aria-label="Log lines">
          {lines.map((line, n) => (
            <li key={n} class={`log log-${line.level}`}>
              <time dateTime={line.at} title={exact(line.at)}>
                {clock(line.at)}
              </time>
              <span class="log-level">{line.level}</span>
              <span class="log-text">
                {line.message}
                {line.data && <code> {JSON.stringify(line.data)}</code>}
              </span>
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}
