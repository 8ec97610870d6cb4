// The list of jobs: filters in the address, columns to choose, actions on a selection or on all that match.
import { useEffect, useMemo, useState } from 'preact/hooks';
import { api, queryOf } from '../data/api.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { type JobFilters, useJobList } from '../data/jobs/job-list.ts';
import { navigate, usePlace } from '../data/router.ts';
import { may } from '../data/session.ts';
import type { JobSummary, Status } from '../data/types.ts';
import { Empty, ErrorNote, Waiting } from '../parts/feedback.tsx';
import { Icon } from '../parts/icons.tsx';
import { BulkButton, type BulkFilter } from '../parts/jobs/bulk.tsx';
import { Filters, filtersOf } from '../parts/jobs/job-filters.tsx';
import { ColumnMenu, JobTable, useColumns } from '../parts/jobs/job-table.tsx';
import { toast } from '../parts/shell/toasts.tsx';
import { number } from '../parts/time.tsx';

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

interface BulkBarProps {
  filters: JobFilters;
  jobs: JobSummary[];
  selected: ReadonlySet<string>;
  clear: () => void;
  onDone: () => void;
}

function BulkBar({ filters, jobs, selected, clear, onDone }: BulkBarProps) {
  if (!may('control') || jobs.length === 0) return null;
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

function bulkFilter({ status, held, ...rest }: JobFilters): BulkFilter {
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
