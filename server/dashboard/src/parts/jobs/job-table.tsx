// A long table of jobs of which only the visible rows exist; keys j, k, x and Enter work on it.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { enc } from '../../data/api.ts';
import { describeWaiting } from '../../data/jobs/descriptions.ts';
import { hrefOf, navigate } from '../../data/router.ts';
import { may } from '../../data/session.ts';
import type { JobSummary } from '../../data/types.ts';
import { Icon } from '../icons.tsx';
import { Ago, number, Sentence, span } from '../time.tsx';
import { Progress, StatusMark } from './status.tsx';
import { useNarrow, useRowWindow } from './windowed.ts';

interface Column {
  name: string;
  label: string;
  width: string;
  show: (job: JobSummary) => ComponentChildren;
}

const all: readonly Column[] = [
  {
    name: 'status',
    label: 'State',
    width: '8.5rem',
    show: (job) => <StatusMark status={job.status} stopping={job.cancel_requested} />,
  },
  {
    name: 'type',
    label: 'Type',
    width: 'minmax(9rem, 1.2fr)',
    show: (job) => (
      <a href={hrefOf(`/jobs/${job.id}`)} tabIndex={-1}>
        <code>{job.type}</code>
      </a>
    ),
  },
  {
    name: 'target',
    label: 'Target',
    width: 'minmax(8rem, 1fr)',
    show: (job) =>
      job.target_id === null ? (
        <span class="muted">none</span>
      ) : (
        <a href={hrefOf(`/targets/${enc(job.target_id)}`)} tabIndex={-1}>
          {job.target_id}
        </a>
      ),
  },
  { name: 'note', label: 'What happens', width: 'minmax(10rem, 3fr)', show: noteOf },
  { name: 'created', label: 'Created', width: '6rem', show: (job) => <Ago at={job.created_at} /> },
  { name: 'duration', label: 'Ran', width: '5rem', show: (job) => durationOf(job) },
  {
    name: 'attempts',
    label: 'Attempts',
    width: '5rem',
    show: (job) => `${job.attempts_since_resume} of ${job.max_attempts}`,
  },
  { name: 'priority', label: 'Priority', width: '5.5rem', show: (job) => job.priority.toLowerCase() },
  { name: 'queue', label: 'Queue', width: '7rem', show: (job) => job.queue },
  { name: 'owner', label: 'Worker', width: '10rem', show: (job) => job.lease_owner ?? '' },
  {
    name: 'tokens',
    label: 'Tokens',
    width: '6rem',
    show: (job) => (job.usage.tokens === 0 ? '' : number(job.usage.tokens)),
  },
  { name: 'author', label: 'Author', width: '7rem', show: (job) => job.author ?? '' },
  { name: 'id', label: 'Id', width: '20rem', show: (job) => <code>{job.id}</code> },
];

const usual = ['status', 'type', 'target', 'note', 'created', 'duration', 'attempts'];
const item = 'leasehold.job-columns';

function noteOf(job: JobSummary): ComponentChildren {
  if (job.status === 'RUNNING') {
    return (
      <span class="note-run">
        <Progress value={job.progress ?? 0} message={job.progress_message} />
        <span class="clip">{job.progress_message ?? ''}</span>
      </span>
    );
  }
  if (job.status === 'WAITING' && job.waiting !== null) {
    return (
      <span class="clip muted" title={describeWaiting(job.waiting)}>
        <Sentence text={describeWaiting(job.waiting)} />
      </span>
    );
  }
  if (job.status === 'PENDING') {
    return (
      <span class="muted">
        due <Ago at={job.run_at} />
      </span>
    );
  }
  const text = job.hold?.reason ?? job.error?.message;
  return <span class={job.status === 'ERROR' ? 'clip tone-fail' : 'clip muted'}>{text ?? ''}</span>;
}

function durationOf(job: JobSummary): string {
  if (job.started_at === null) return '';
  if (job.status === 'RUNNING') return span(Math.max(0, Date.now() - Date.parse(job.started_at)));
  return job.finished_at === null ? '' : span(Math.max(0, Date.parse(job.finished_at) - Date.parse(job.started_at)));
}

export function useColumns(): [string[], (names: string[]) => void] {
  const [names, setNames] = useState<string[]>(() => {
    const kept = (localStorage.getItem(item) ?? '')
      .split(',')
      .filter((name) => all.some((column) => column.name === name));
    return kept.length > 0 ? kept : usual;
  });
  return [
    names,
    (next) => {
      localStorage.setItem(item, next.join(','));
      setNames(next);
    },
  ];
}

export function ColumnMenu({ columns, onChange }: { columns: string[]; onChange: (names: string[]) => void }) {
  const [open, setOpen] = useState(false);
  return (
    <div class="account wide-only">
      <button type="button" class="button" aria-expanded={open} onClick={() => setOpen(!open)}>
        <Icon name="settings" size={14} /> Columns
      </button>
      {open && (
        <div class="popover">
          {all.map(({ name, label }) => (
            <label key={name} class="check">
              <input
                type="checkbox"
                checked={columns.includes(name)}
                onChange={() =>
                  onChange(
                    all
                      .map((column) => column.name)
                      .filter((each) => (each === name ? !columns.includes(name) : columns.includes(each))),
                  )
                }
              />
              {label}
            </label>
          ))}
          <button type="button" class="link" onClick={() => onChange(usual)}>
            The usual columns
          </button>
        </div>
      )}
    </div>
  );
}

interface JobTableProps {
  jobs: JobSummary[];
  columns: string[];
  selected: ReadonlySet<string>;
  onSelect: (ids: ReadonlySet<string>) => void;
  more: (() => void) | undefined;
}

export function JobTable({ jobs, columns, selected, onSelect, more }: JobTableProps) {
  const body = useRef<HTMLDivElement>(null);
  const narrow = useNarrow();
  const rowPx = narrow ? 84 : 44;
  const { first, last } = useRowWindow(body, jobs.length, rowPx);
  const [cursor, setCursor] = useState(-1);
  const shown = all.filter((column) => columns.includes(column.name));
  const selects = may('control');
  const template = [...(selects ? ['2.25rem'] : []), ...shown.map((column) => column.width)].join(' ');
  useEffect(() => {
    if (more && last >= jobs.length - 5) more();
  }, [last, jobs.length, more !== undefined]);
  const toggle = (id: string) => {
    const next = new Set(selected);
    if (!next.delete(id)) next.add(id);
    onSelect(next);
  };
  useRowKeys(jobs, cursor, setCursor, selects ? toggle : undefined);
  useEffect(() => {
    const row = body.current?.querySelector<HTMLElement>(`[data-row="${cursor}"]`);
    row?.focus({ preventScroll: true });
    row?.scrollIntoView({ block: 'nearest' });
  }, [cursor]);
  const allChosen = jobs.length > 0 && jobs.every((job) => selected.has(job.id));
  return (
    <div class="table" role="table" aria-label="Jobs" aria-rowcount={more ? -1 : jobs.length + 1}>
      <div class="table-head" role="row" style={{ gridTemplateColumns: template }}>
        {selects && (
          <span role="columnheader">
            <input
              type="checkbox"
              aria-label="Select all that are loaded"
              checked={allChosen}
              onChange={() => onSelect(allChosen ? new Set() : new Set(jobs.map((job) => job.id)))}
            />
          </span>
        )}
        {shown.map((column) => (
          <span key={column.name} role="columnheader">
            {column.label}
          </span>
        ))}
      </div>
      <div ref={body} role="rowgroup" class="table-body" style={{ height: `${jobs.length * rowPx}px` }}>
        {jobs.slice(first, last).map((job, n) => {
          const at = first + n;
          return (
            <div
              key={job.id}
              role="row"
              data-row={at}
              class={selected.has(job.id) ? 'table-row selected' : 'table-row'}
              tabIndex={at === Math.max(0, cursor) ? 0 : -1}
              aria-rowindex={at + 2}
              style={{ gridTemplateColumns: template, top: `${at * rowPx}px`, height: `${rowPx}px` }}
              onFocus={() => setCursor(at)}
              onClick={(event) => {
                if (!(event.target as Element).closest('a, input, label')) navigate(`/jobs/${job.id}`);
              }}
              onKeyDown={(event) => {
                if (event.key === 'Enter' && event.target === event.currentTarget) navigate(`/jobs/${job.id}`);
              }}
            >
              {selects && (
                <span role="cell" class="cell-check">
                  <input
                    type="checkbox"
                    tabIndex={-1}
                    aria-label={`Select ${job.type} ${job.id}`}
                    checked={selected.has(job.id)}
                    onChange={() => toggle(job.id)}
                  />
                </span>
              )}
              {shown.map((column) => (
                <span key={column.name} role="cell" class={`cell cell-${column.name}`}>
                  {column.show(job)}
                </span>
              ))}
            </div>
          );
        })}
      </div>
      {more && <p class="muted small table-foot">Looking for more…</p>}
    </div>
  );
}

function useRowKeys(
  jobs: JobSummary[],
  cursor: number,
  move: (at: number) => void,
  toggle: ((id: string) => void) | undefined,
): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test((event.target as HTMLElement).tagName);
      if (event.metaKey || event.ctrlKey || event.altKey || typing || document.querySelector('dialog[open]')) return;
      const job = jobs[cursor];
      if (event.key === 'j' || event.key === 'ArrowDown') move(Math.min(cursor + 1, jobs.length - 1));
      else if (event.key === 'k' || event.key === 'ArrowUp') move(Math.max(cursor - 1, 0));
      else if (event.key === 'x' && job && toggle) toggle(job.id);
      else return;
      event.preventDefault();
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  }, [jobs, cursor, toggle]);
}
