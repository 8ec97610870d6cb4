// The filters of the job list. They are kept in the address, so that a filtered list can be linked.
import { useState } from 'preact/hooks';
import type { JobFilters } from '../../data/jobs/job-list.ts';
import { navigate, setSearch } from '../../data/router.ts';
import { priorities } from '../../data/types.ts';
import { Icon } from '../icons.tsx';

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
  'parent_id',
  'created_after',
  'created_before',
] as const;

export function filtersOf(search: URLSearchParams): JobFilters {
  return Object.fromEntries(filterNames.flatMap((name) => (search.get(name) ? [[name, search.get(name)]] : [])));
}

const views: { label: string; values: Pick<JobFilters, 'status' | 'held'> }[] = [
  { label: 'All', values: {} },
  { label: 'Held', values: { held: 'true' } },
  { label: 'Running', values: { status: 'RUNNING,CLAIMED,PREPARING,LEASE_PENDING' } },
  { label: 'Queued', values: { status: 'QUEUED,PENDING' } },
  { label: 'Waiting', values: { status: 'WAITING' } },
  { label: 'Failed', values: { status: 'ERROR' } },
  { label: 'Done', values: { status: 'SUCCESS,PARTIAL' } },
  { label: 'Canceled', values: { status: 'CANCELED' } },
];

const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function Filters({ filters }: { filters: JobFilters }) {
  const more = [
    'type',
    'target_id',
    'hold_kind',
    'queue',
    'priority',
    'payload',
    'parent_id',
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
          {field('parent_id', 'Parent job', 'id', 20)}
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
