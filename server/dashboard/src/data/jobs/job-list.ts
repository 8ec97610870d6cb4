// A list of jobs that stays live without jumping: rows change in place, new ones wait behind a button unless the
// reader is at the top.
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { type ApiError, api, queryOf } from '../api.ts';
import { useQuery } from '../query.ts';
import type { JobSummary, LiveEvent, Status } from '../types.ts';

export interface JobFilters {
  status?: string | undefined;
  held?: string | undefined;
  hold_kind?: string | undefined;
  type?: string | undefined;
  target_id?: string | undefined;
  queue?: string | undefined;
  priority?: string | undefined;
  search?: string | undefined;
  payload?: string | undefined;
  parent_id?: string | undefined;
  created_after?: string | undefined;
  created_before?: string | undefined;
}

export interface JobList {
  jobs: JobSummary[];
  loading: boolean;
  error: ApiError | undefined;
  /** Undefined if there are no more. */
  more: (() => void) | undefined;
  /** The number of new jobs, which a call shows. */
  fresh: number;
  showFresh(): void;
  refresh(): void;
}

interface Page {
  jobs: JobSummary[];
  next_cursor: string | null;
}

const pageSize = 100;

export function useJobList(filters: JobFilters, keepsStill: boolean): JobList {
  const key = `jobs:${queryOf({ ...filters })}`;
  const [older, setOlder] = useState<{ key: string; jobs: JobSummary[]; next: string | null | undefined }>({
    key,
    jobs: [],
    next: undefined,
  });
  const [shown, setShown] = useState<{ key: string; jobs: JobSummary[] }>({ key, jobs: [] });
  const [fresh, setFresh] = useState<{ key: string; jobs: JobSummary[] }>({ key, jobs: [] });
  const still = useRef(keepsStill);
  still.current = keepsStill;
  const first = useQuery(key, (signal) => api<Page>(`/jobs${queryOf({ ...filters, limit: pageSize })}`, { signal }), {
    on: (event: LiveEvent) => event.job_id !== null && concerns(event, filters),
  });

  useEffect(() => {
    const page = first.data;
    if (page === undefined) return;
    setShown((before) => {
      const known = before.key === key ? before.jobs : [];
      const ids = new Set(known.map((job) => job.id));
      const arrived = page.jobs.filter((job) => !ids.has(job.id) && (known[0] === undefined || job.id > known[0].id));
      const reader = still.current || scrollY > 200;
      if (known.length === 0 || !reader) {
        setFresh({ key, jobs: [] });
        return { key, jobs: page.jobs };
      }
      setFresh({ key, jobs: arrived });
      const now = new Map(page.jobs.map((job) => [job.id, job]));
      return { key, jobs: known.map((job) => now.get(job.id) ?? job) };
    });
    setOlder((before) => (before.key === key ? before : { key, jobs: [], next: undefined }));
  }, [first.data, key]);

  const next = older.key === key && older.next !== undefined ? older.next : first.data?.next_cursor;
  const busy = useRef(false);
  const more = useCallback(async () => {
    if (!next || busy.current) return;
    busy.current = true;
    try {
      const page = await api<Page>(`/jobs${queryOf({ ...filters, limit: pageSize, cursor: next })}`);
      setOlder((before) => ({
        key,
        jobs: [...(before.key === key ? before.jobs : []), ...page.jobs],
        next: page.next_cursor,
      }));
    } finally {
      busy.current = false;
    }
  }, [next, key]);

  const own = shown.key === key ? shown.jobs : [];
  const ownOlder = older.key === key ? older.jobs : [];
  const seen = new Set(own.map((job) => job.id));
  return {
    jobs: [...own, ...ownOlder.filter((job) => !seen.has(job.id))],
    loading: first.loading,
    error: first.error,
    more: next ? () => void more() : undefined,
    fresh: fresh.key === key ? fresh.jobs.length : 0,
    showFresh: () => {
      setShown({ key, jobs: [...fresh.jobs, ...own] });
      setFresh({ key, jobs: [] });
      scrollTo({ top: 0 });
    },
    refresh: first.refresh,
  };
}

/** True if an event can change this list. The check is cheap, and true in case of doubt. */
function concerns(event: LiveEvent, filters: JobFilters): boolean {
  if (filters.target_id !== undefined && event.target_id !== filters.target_id) return false;
  if (filters.status === undefined) return true;
  const wanted = filters.status.split(',') as Status[];
  return wanted.some((status) => event.from === status || event.to === status);
}
