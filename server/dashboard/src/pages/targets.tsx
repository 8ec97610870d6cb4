// The lanes: running jobs, holds and waiting jobs.
import { useState } from 'preact/hooks';
import { api, queryOf } from '../data/api.ts';
import { useTitle } from '../data/jobs/holds.ts';
import { useQuery } from '../data/query.ts';
import { setSearch, usePlace } from '../data/router.ts';
import type { Lane } from '../data/types.ts';
import { Empty, Loaded } from '../parts/feedback.tsx';
import { Icon } from '../parts/icons.tsx';
import { LaneRow } from '../parts/jobs/lane.tsx';

interface Page {
  lanes: Lane[];
  next_cursor: string | null;
}

const selections = { all: 'All', held: 'Held', running: 'Running', paused: 'Paused' } as const;

export function TargetsPage() {
  useTitle('Targets');
  const { search } = usePlace();
  const show = search.get('show') ?? 'all';
  const text = search.get('search') ?? '';
  const [pages, setPages] = useState(1);
  const lanes = useQuery(
    `lanes:${show}:${text}:${pages}`,
    async (signal) => {
      const all: Page = { lanes: [], next_cursor: null };
      for (let n = 0; n < pages; n++) {
        const cursor = all.next_cursor ?? undefined;
        const page = await api<Page>(`/lanes${queryOf({ show, search: text, limit: 50, cursor })}`, { signal });
        all.lanes.push(...page.lanes);
        all.next_cursor = page.next_cursor;
        if (page.next_cursor === null) break;
      }
      return all;
    },
    { on: (event) => event.target_id !== null },
  );
  return (
    <>
      <header class="page-head">
        <h1>Targets</h1>
      </header>
      <div class="filters">
        <div class="segments" role="group" aria-label="Show">
          {Object.entries(selections).map(([value, label]) => (
            <button
              key={value}
              type="button"
              aria-pressed={value === show}
              onClick={() => setSearch({ show: value === 'all' ? undefined : value })}
            >
              {label}
            </button>
          ))}
        </div>
        <label class="search-field">
          <Icon name="search" size={14} />
          <span class="visually-hidden">Part of a target's id</span>
          <input
            type="search"
            placeholder="Part of a target's id"
            value={text}
            onInput={(event) => setSearch({ search: (event.target as HTMLInputElement).value })}
          />
        </label>
      </div>
      <Loaded query={lanes} rows={6}>
        {(page) =>
          page.lanes.length === 0 ? (
            <NoLanes show={show} text={text} />
          ) : (
            <>
              <div class="lanes">
                {page.lanes.map((lane) => (
                  <LaneRow key={lane.id} lane={lane} onChange={lanes.refresh} />
                ))}
              </div>
              {page.next_cursor !== null && (
                <button type="button" class="button more-button" onClick={() => setPages(pages + 1)}>
                  Show more targets
                </button>
              )}
            </>
          )
        }
      </Loaded>
    </>
  );
}

function NoLanes({ show, text }: { show: string; text: string }) {
  if (text !== '') {
    return (
      <Empty icon="search" title={`No target contains “${text}”`}>
        <button type="button" class="button" onClick={() => setSearch({ search: undefined })}>
          Show all targets
        </button>
      </Empty>
    );
  }
  if (show === 'held') return <Empty icon="resolve" title="No lane is held" />;
  if (show !== 'all')
    return <Empty icon="targets" title={show === 'paused' ? 'No target is paused' : 'Nothing runs now'} />;
  return (
    <Empty icon="targets" title="No targets yet">
      <p>A target appears with its first job: POST /api/targets/machine-1/jobs.</p>
    </Empty>
  );
}
