// States, attempts, leases and phases of a job on one time axis. A click on an attempt makes it fill the axis.
import { useState } from 'preact/hooks';
import { type Timeline, type TimelineRow, timelineOf } from '../../data/jobs/timeline.ts';
import type { Job, LiveEvent } from '../../data/types.ts';
import { span, useNow } from '../time.tsx';

export function Waterfall({ job, events }: { job: Job; events: readonly LiveEvent[] }) {
  const now = useNow();
  const [zoom, setZoom] = useState<{ from: number; to: number }>();
  const timeline = timelineOf(job, events, now);
  const [whole, setWhole] = useState(false);
  const { from, to } = zoom ?? (whole ? timeline : activity(timeline));
  const cut = zoom !== undefined || to < timeline.to;
  const place = (at: number) => Math.max(0, Math.min(100, ((at - from) / (to - from)) * 100));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => ({
    share,
    text: `+${span((to - from) * share + (from - timeline.from))}`,
  }));
  return (
    <figure class="waterfall">
      <figcaption class="visually-hidden">{describe(timeline.rows)}</figcaption>
      <div class="waterfall-axis" aria-hidden="true">
        {ticks.map(({ share, text }) => (
          <span key={share} style={{ left: `${share * 100}%` }} class={share === 1 ? 'last' : ''}>
            {share === 0 && !zoom ? '0' : text}
          </span>
        ))}
      </div>
      {timeline.rows.map((row, n) => (
        <div key={n} class={row.detail === 'phase' ? 'waterfall-row waterfall-phase' : 'waterfall-row'}>
          <span class="waterfall-name" title={row.detail}>
            {row.name}
          </span>
          <div class="waterfall-track">
            {row.bars.map((bar) => {
              const end = bar.to ?? to;
              if (end < from || bar.from > to) return null;
              const text = `${bar.label}, ${span(Math.max(0, (bar.to ?? now) - bar.from))}${row.detail && row.detail !== 'phase' ? `, ${row.detail}` : ''}`;
              return (
                <button
                  key={bar.from}
                  type="button"
                  class={`bar bar-${bar.tone} ${bar.to === undefined ? 'bar-open' : ''}`}
                  title={text}
                  aria-label={text}
                  style={{ left: `${place(bar.from)}%`, width: `max(3px, ${place(end) - place(bar.from)}%)` }}
                  onClick={() => setZoom({ from: bar.from, to: Math.max(bar.to ?? now, bar.from + 1) })}
                />
              );
            })}
            {row.marks.map((mark) => (
              <span
                key={`${mark.at}${mark.label}`}
                class={`mark mark-${mark.tone}`}
                style={{ left: `${place(mark.at)}%` }}
                title={mark.label}
              />
            ))}
          </div>
        </div>
      ))}
      {cut && (
        <button
          type="button"
          class="link"
          onClick={() => {
            setZoom(undefined);
            setWhole(true);
          }}
        >
          Show the whole history
        </button>
      )}
    </figure>
  );
}

/** Omits a long hold at the end, which would leave no room for earlier bars. */
function activity({ from, to, rows }: Timeline): { from: number; to: number } {
  const ends = rows.slice(1).flatMap((row) => row.bars.map((bar) => bar.to ?? to));
  const last = Math.max(from, ...ends);
  const room = last + Math.max(50, (last - from) * 0.25);
  return { from, to: ends.length > 0 && room < to - (to - from) * 0.4 ? room : to };
}

function describe(rows: readonly TimelineRow[]): string {
  return rows
    .map(
      (row) =>
        `${row.name}: ${row.bars.map((bar) => `${bar.label} ${bar.to === undefined ? 'until now' : span(bar.to - bar.from)}`).join(', ')}`,
    )
    .join('. ');
}
