// The list of jobs: filters in the address, columns to choose, actions on a selection or on all that match.
import { useEffect, useMemo, useState } from 'preact/hooks';
import { api, queryOf } from '../data/api.ts';
import { useTitle } from '../data/holds.ts';
import { type JobFilters, useJobList } from '../data/job-list.ts';
import { navigate, setSearch, usePlace } from '../data/router.ts';
import { may } from '../data/session.ts';
import type { JobSummary, Status } from '../data/types.ts';
import { priorities } from '../data/types.ts';
import { BulkButton, type BulkFilter } from '../parts/bulk.tsx';
import { Empty, ErrorNote, Waiting } from '../parts/feedback.tsx';
import { Icon } from '../parts/icons.tsx';
import { ColumnMenu, JobTable, useColumns } from '../parts/job-table.tsx';
import { number } from '../parts/time.tsx';
import { toast } from '../parts/toasts.tsx';

const views: { label: string; values: Pick<JobFilters, 'status' | 'held'> }[] = [
  { label: 'All', values: {} },
  { label: 'Held', values: { held: 'true' } },
  { label: 'Running', values: { status: 'RUNNING,CLAIMED,PREPARING,LEASE_PENDING' } },
  { label: 'Waiting', values: { status: 'QUEUED,PENDING' } },
  { label: 'Failed', values: { status: 'ERROR' } },
  { label: 'Done', values: { status: 'SUCCESS,PARTIAL' } },
  { label: 'Canceled', values: { status: 'CANCELED' } },
];

const filterNames = [
  'status',
  'held',
  'hold_kind',
  'type',
  'target_id',
  'queue',
  'priority',
  'search',
  'payload',
  'created_after',
  'created_before',
] as const;

export function JobsPage() {
  useTitle('Jobs');
  const { search } = usePlace();
  const filters = useMemo(() => filtersOf(search), [search]);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [columns, setColumns] = useColumns();
  const list = useJobList(filters, selected.size > 0);
  useEffect(() => setSelected(new Set()), [queryOf({ ...filters })]);
  return (
    <>
      <header class="page-head">
        <h1>Jobs</h1>
        <div class="page-actions">
          <Download filters={filters} />
          <ColumnMenu columns={columns} onChange={setColumns} />
        </div>
      </header>
      <Filters filters={filters} />
      <BulkBar
        filters={filters}
        jobs={list.jobs}
        selected={selected}
        clear={() => setSelected(new Set())}
        onDone={list.refresh}
      />
      {list.error && <ErrorNote error={list.error} retry={list.refresh} />}
      {list.fresh > 0 && (
        <button type="button" class="fresh-bar" onClick={list.showFresh}>
          {list.fresh >= 100 ? '100 or more' : list.fresh} new {list.fresh === 1 ? 'job' : 'jobs'}: show
        </button>
      )}
      {list.loading ? (
        <Waiting rows={8} />
      ) : list.jobs.length === 0 && !list.more ? (
        <NoJobs filters={filters} />
      ) : (
        <JobTable jobs={list.jobs} columns={columns} selected={selected} onSelect={setSelected} more={list.more} />
      )}
    </>
  );
}

function filtersOf(search: URLSearchParams): JobFilters {
  return Object.fromEntries(filterNames.flatMap((name) => (search.get(name) ? [[name, search.get(name)]] : [])));
}

const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

function Filters({ filters }: { filters: JobFilters }) {
  const more = [
    'type',
    'target_id',
    'hold_kind',
    'queue',
    'priority',
    'payload',
    'created_after',
    'created_before',
  ] as const;
  const [open, setOpen] = useState(more.some((name) => filters[name] !== undefined));
  const field = (name: keyof JobFilters, label: string, placeholder: string, size = 16) => (
    <label class="filter">
      <span>{label}</span>
      <input
        key={`${name}:${filters[name] ?? ''}`}
        size={size}
        placeholder={placeholder}
        defaultValue={filters[name] ?? ''}
        onChange={(event) => setSearch({ [name]: (event.target as HTMLInputElement).value.trim() })}
      />
    </label>
  );
  return (
    <div class="filters">
      <div class="segments" role="group" aria-label="State">
        {views.map(({ label, values }) => (
          <button
            key={label}
            type="button"
            aria-pressed={filters.status === values.status && filters.held === values.held}
            onClick={() => setSearch({ status: values.status, held: values.held })}
          >
            {label}
          </button>
        ))}
      </div>
      <label class="search-field">
        <Icon name="search" size={14} />
        <span class="visually-hidden">Id, or part of a type or target</span>
        <input
          type="search"
          placeholder="Id, or part of a type or target"
          key={filters.search ?? ''}
          defaultValue={filters.search ?? ''}
          onChange={(event) => {
            const text = (event.target as HTMLInputElement).value.trim();
            if (uuid.test(text)) navigate(`/jobs/${text.toLowerCase()}`);
            else setSearch({ search: text });
          }}
        />
      </label>
      <button type="button" class="button button-quiet" aria-expanded={open} onClick={() => setOpen(!open)}>
        {open ? 'Fewer filters' : 'More filters'}
      </button>
      {open && (
        <div class="filters-more">
          {field('type', 'Type', 'exact')}
          {field('target_id', 'Target', 'exact')}
          {field('queue', 'Queue', 'exact')}
          {field('payload', 'Payload', 'customer.id=42', 20)}
          <Choice name="priority" label="Priority" value={filters.priority} options={[...priorities]} />
          <Choice
            name="hold_kind"
            label="Hold"
            value={filters.hold_kind}
            options={['user', 'drain', 'budget', 'error', 'handler']}
          />
          <TimeField name="created_after" label="Created after" value={filters.created_after} />
          <TimeField name="created_before" label="Created before" value={filters.created_before} />
        </div>
      )}
    </div>
  );
}

function Choice({
  name,
  label,
  value,
  options,
}: {
  name: string;
  label: string;
  value: string | undefined;
  options: string[];
}) {
  return (
    <label class="filter">
      <span>{label}</span>
      <select
        value={value ?? ''}
        onChange={(event) => setSearch({ [name]: (event.target as HTMLSelectElement).value })}
      >
        <option value="">any</option>
        {options.map((option) => (
          <option key={option} value={option}>
            {option.toLowerCase()}
          </option>
        ))}
      </select>
    </label>
  );
}

function TimeField({ name, label, value }: { name: string; label: string; value: string | undefined }) {
  return (
    <label class="filter">
      <span>{label}</span>
      <input
        type="datetime-local"
        value={value === undefined ? '' : localTime(value)}
        onChange={(event) => {
          const text = (event.target as HTMLInputElement).value;
          setSearch({ [name]: text === '' ? undefined : new Date(text).toISOString() });
        }}
      />
    </label>
  );
}

function localTime(at: string): string {
  const date = new Date(at);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

interface BulkBarProps {
  filters: JobFilters;
  jobs: JobSummary[];
  selected: ReadonlySet<string>;
  clear: () => void;
  onDone: () => void;
}

/** Text searches cannot be repeated by an operation: then a selection is the way. */
function BulkBar({ filters, jobs, selected, clear, onDone }: BulkBarProps) {
  if (!may('control') || jobs.length === 0) return null;
  const searched = filters.search !== undefined || filters.payload !== undefined;
  if (selected.size === 0 && searched)
    return <p class="bulk-bar muted small">Select jobs to act on several at once.</p>;
  const filter: BulkFilter = selected.size > 0 ? { ids: [...selected] } : bulkFilter(filters);
  const of = selected.size > 0 ? `${number(selected.size)} selected` : 'all that match';
  return (
    <div class="bulk-bar" role="group" aria-label="Actions on several jobs">
      <span class="small">On {of}:</span>
      <BulkButton action="resume" filter={filter} label="Resume" onDone={onDone} quiet />
      <BulkButton action="retry" filter={filter} label="Retry failed" onDone={onDone} quiet />
      <BulkButton action="cancel" filter={filter} label="Cancel" onDone={onDone} quiet />
      {selected.size > 0 && (
        <button type="button" class="link" onClick={clear}>
          Clear selection
        </button>
      )}
    </div>
  );
}

function bulkFilter({ status, held, search: _, payload: __, ...rest }: JobFilters): BulkFilter {
  const statuses = status?.split(',') as Status[] | undefined;
  const given = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined)) as BulkFilter;
  if (statuses) return { ...given, status: statuses };
  return held === 'true' ? { ...given, status: ['PAUSED', 'ERROR'] } : given;
}

// Enough for a spreadsheet, bounded for the daemon and the browser.
const maxDownloaded = 5000;

function Download({ filters }: { filters: JobFilters }) {
  const [busy, setBusy] = useState(false);
  const download = async () => {
    setBusy(true);
    const jobs: JobSummary[] = [];
    let cursor: string | undefined;
    try {
      do {
        const page = await api<{ jobs: JobSummary[]; next_cursor: string | null }>(
          `/jobs${queryOf({ ...filters, limit: 50, include: 'payload,result', cursor })}`,
        );
        jobs.push(...page.jobs);
        cursor = page.next_cursor ?? undefined;
      } while (cursor !== undefined && jobs.length < maxDownloaded);
      save(jobs);
      if (cursor !== undefined) toast(`Downloaded the first ${number(jobs.length)} jobs; there are more`);
    } catch (error) {
      toast((error as Error).message, { tone: 'fail' });
    }
    setBusy(false);
  };
  return (
    <button type="button" class="button" disabled={busy} onClick={() => void download()}>
      <Icon name="down" size={14} /> {busy ? 'Reading' : 'JSON'}
      <span class="visually-hidden"> Download as JSON</span>
    </button>
  );
}

function save(jobs: JobSummary[]): void {
  const url = URL.createObjectURL(new Blob([JSON.stringify(jobs, null, 2)], { type: 'application/json' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = 'jobs.json';
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function NoJobs({ filters }: { filters: JobFilters }) {
  const filtered = Object.keys(filters).length > 0;
  if (filtered) {
    return (
      <Empty icon="search" title="No job matches these filters">
        <button type="button" class="button" onClick={() => navigate('/jobs')}>
          Show all jobs
        </button>
      </Empty>
    );
  }
  return (
    <Empty icon="jobs" title="No jobs yet">
      <p>The first one: POST /api/jobs with a type and a payload. The tutorial has a line to paste.</p>
    </Empty>
  );
}
