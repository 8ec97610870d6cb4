// A small plot of one or two metrics over time, redrawn when the theme or the width changes.
import { useEffect, useRef } from 'preact/hooks';
import '../data/browser-locale.ts';
// Formats numbers in the browser's language as soon as it is loaded: after the line above.
import uPlot from 'uplot';
import { compact, span } from './time.tsx';

export interface Line {
  name: string;
  tone: 'run' | 'fail' | 'done' | 'wait' | 'hold';
  values: number[];
}

interface PlotProps {
  label: string;
  times: number[];
  lines: Line[];
  unit?: 'count' | 'seconds';
}

export function Plot({ label, times, lines, unit = 'count' }: PlotProps) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    let plot: uPlot | undefined;
    const draw = () => {
      plot?.destroy();
      plot = new uPlot(optionsOf(element, lines, unit), [times, ...lines.map((line) => line.values)], element);
    };
    draw();
    const resized = new ResizeObserver(() => plot?.setSize({ width: element.clientWidth, height: heightPx }));
    resized.observe(element);
    const themed = new MutationObserver(draw);
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] });
    const system = matchMedia('(prefers-color-scheme: dark)');
    system.addEventListener('change', draw);
    return () => {
      resized.disconnect();
      themed.disconnect();
      system.removeEventListener('change', draw);
      plot?.destroy();
    };
  }, [times, lines, unit]);
  return <div class="plot" ref={place} role="img" aria-label={describe(label, lines, unit)} />;
}

const heightPx = 130;

function optionsOf(element: HTMLElement, lines: Line[], unit: 'count' | 'seconds'): uPlot.Options {
  const style = getComputedStyle(element);
  const color = (name: string) => style.getPropertyValue(name).trim();
  const format = (value: number) => (unit === 'seconds' ? span(value * 1000) : compact(value));
  const axis = {
    stroke: color('--muted'),
    font: '11px system-ui, sans-serif',
    grid: { stroke: color('--line'), width: 1 },
    ticks: { show: false },
  };
  return {
    width: element.clientWidth || 300,
    height: heightPx,
    legend: { show: false },
    cursor: { points: { size: 6 }, y: false },
    padding: [8, 4, 0, 0],
    scales: { y: { range: (_plot, _min, max) => [0, max > 0 ? max * 1.1 : 1] } },
    axes: [
      {
        ...axis,
        grid: { show: false },
        space: 64,
        size: 24,
        values: (plot, times) => times.map((time) => tick(plot, time)),
      },
      {
        ...axis,
        size: 48,
        space: 34,
        values: (_plot, values) => values.map((value) => (unit === 'count' && value % 1 ? '' : format(value))),
      },
    ],
    series: [
      {},
      ...lines.map(
        (line): uPlot.Series => ({
          label: line.name,
          stroke: color(`--${line.tone}`),
          ...(lines.length === 1 && { fill: `${color(`--${line.tone}`)}22` }),
          width: 1.75,
          points: { show: false },
        }),
      ),
    ],
    hooks: { setCursor: [(plot) => showValues(plot, element, lines, format)] },
  } as uPlot.Options;
}

/** A time of day, or a day where the plot shows several. */
function tick(plot: uPlot, time: number): string {
  const { min = 0, max = 0 } = plot.scales.x ?? {};
  const days = (max ?? 0) - (min ?? 0) > 2 * 86_400;
  const options: Intl.DateTimeFormatOptions = days
    ? { day: 'numeric', month: 'short' }
    : { hour: '2-digit', minute: '2-digit', hour12: false };
  return new Date(time * 1000).toLocaleString(undefined, options);
}

/** The values under the cursor, written into the element's own caption. */
function showValues(plot: uPlot, element: HTMLElement, lines: Line[], format: (value: number) => string): void {
  const caption = element.parentElement?.querySelector('.plot-value');
  if (!caption) return;
  const at = plot.cursor.idx;
  const time = at === null || at === undefined ? undefined : plot.data[0][at];
  if (time === undefined || at === null || at === undefined) {
    caption.textContent = caption.getAttribute('data-rest') ?? '';
    return;
  }
  const when = new Date(time * 1000).toLocaleString(undefined, { dateStyle: 'short', timeStyle: 'short' });
  caption.textContent = `${when} · ${lines.map((line) => `${line.name} ${format(line.values[at] ?? 0)}`).join(', ')}`;
}

function describe(label: string, lines: Line[], unit: 'count' | 'seconds'): string {
  const last = lines.map(
    (line) =>
      `${line.name} ${unit === 'seconds' ? span((line.values.at(-1) ?? 0) * 1000) : compact(line.values.at(-1) ?? 0)}`,
  );
  return `${label}. Latest: ${last.join(', ')}`;
}
