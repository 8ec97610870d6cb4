// `npm run bench:plot`: draws docs/images/{growth-size,growth-cost,rest-rate}.svg from the raw results in
// docs/performance/{growth,rest}.json. Plain SVG that follows the reader's light or dark theme.
import { readFileSync, writeFileSync } from 'node:fs';
import { argv } from 'node:process';
import { fileURLToPath } from 'node:url';

const docs = new URL('../../../docs/', import.meta.url);
const read = (name) => JSON.parse(readFileSync(new URL(`performance/${name}.json`, docs), 'utf8'));
const [width, height] = [720, 300];
const [left, right, top, bottom] = [64, 24, 48, 48];
const colours = ['a', 'b', 'c', 'd'];

/** Name → SVG, from the kept results. */
export function plots() {
  const growth = read('growth');
  return { 'growth-size': sizePlot(growth), 'growth-cost': costPlot(growth), 'rest-rate': restPlot(read('rest')) };
}

if (argv[1] === fileURLToPath(import.meta.url)) {
  for (const [name, svg] of Object.entries(plots())) writeFileSync(new URL(`images/${name}.svg`, docs), svg);
}

/** Requests per second of the daemon and of the bare route, by kind of request and number of callers. */
function restPlot({ W8 }) {
  const cases = Object.entries(W8.cases);
  return bars(
    'W8: requests a second, by kind of request and callers',
    cases.map(([name]) => name),
    [
      { label: 'daemon', values: cases.map(([, { ours }]) => ours.perSecond) },
      { label: 'bare Express route', values: cases.map(([, { bare }]) => bare.perSecond) },
    ],
  );
}

/** Megabytes of tables with their indexes, and jobs that ended, by minute. */
function sizePlot({ perSecond, minutes }) {
  const size = (table) => minutes.map(({ tableMb, indexMb }) => tableMb[table] + indexMb[table]);
  return figure(
    `${perSecond} jobs a second with retention on: MB of tables and indexes, by minute`,
    minutes.map(({ minute }) => minute),
    [
      { label: 'jobs', values: size('jobs') },
      { label: 'events', values: size('events') },
      { label: 'event_seals', values: size('event_seals') },
      { label: 'jobs a second / 10', values: minutes.map(({ endedPerSecond }) => endedPerSecond / 10) },
    ],
  );
}

/** CPU time per job. */
function costPlot({ minutes }) {
  return figure(
    'Microseconds of CPU per job, by minute; retention begins after the first',
    minutes.map(({ minute }) => minute),
    [
      { label: 'Postgres', values: minutes.map(({ postgresCpuMicroseconds }) => postgresCpuMicroseconds) },
      { label: 'daemon', values: minutes.map(({ daemonCpuMicroseconds }) => daemonCpuMicroseconds) },
    ],
  );
}

/** Lines over points at equal distances. */
function figure(title, points, lines) {
  const { y, grid } = scaleOf(lines);
  const x = (i) => left + (i * (width - left - right)) / Math.max(1, points.length - 1);
  const ticks = ticksOf(points, x);
  const drawn = lines.map(({ values }, n) => {
    const path = values.map((value, i) => `${i === 0 ? 'M' : 'L'}${trim(x(i))} ${trim(y(value))}`).join('');
    const dots = values.map(
      (value, i) => `<circle class="${colours[n]}" cx="${trim(x(i))}" cy="${trim(y(value))}" r="3"/>`,
    );
    return `<path class="line ${colours[n]}" d="${path}"/>${dots.join('')}`;
  });
  return page(title, [...grid, ...ticks, ...drawn, ...legendOf(lines)]);
}

/** Bars of each series side by side over each point. */
function bars(title, points, series) {
  const { y, grid } = scaleOf(series);
  const step = (width - left - right) / points.length;
  const x = (i) => trim(left + (i + 0.5) * step);
  const wide = (step * 0.7) / series.length;
  const drawn = series.flatMap(({ values }, n) =>
    values.map((value, i) => {
      const at = x(i) + (n - series.length / 2) * wide;
      return `<rect class="${colours[n]}" x="${trim(at)}" y="${trim(y(value))}" width="${trim(wide)}" height="${trim(y(0) - y(value))}"/>`;
    }),
  );
  return page(title, [...grid, ...ticksOf(points, x), ...drawn, ...legendOf(series)]);
}

function scaleOf(series) {
  const max = niceMax(Math.max(...series.flatMap(({ values }) => values)));
  const y = (value) => height - bottom - (value / max) * (height - top - bottom);
  const grid = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const [at, label] = [y(share * max), trim(share * max)];
    return `<path class="grid" d="M${left} ${at}H${width - right}"/><text x="${left - 8}" y="${at + 4}" text-anchor="end">${label}</text>`;
  });
  return { y, grid };
}

function ticksOf(points, x) {
  return points.map((point, i) => `<text x="${x(i)}" y="${height - bottom + 18}" text-anchor="middle">${point}</text>`);
}

function legendOf(series) {
  let at = left;
  return series.map(({ label }, n) => {
    const entry = `<circle class="${colours[n]}" cx="${at + 4}" cy="${height - 10}" r="4"/><text x="${at + 14}" y="${height - 6}">${label}</text>`;
    at += 34 + label.length * 6.6;
    return entry;
  });
}

function page(title, content) {
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" role="img" aria-label="${title}">
<style>
svg { background: #fff; font: 12px system-ui, sans-serif }
text { fill: #3a3f47 } .title { font-size: 14px; font-weight: 600 }
.grid { stroke: #d8dce2 } .line { fill: none; stroke-width: 2 }
.a { fill: #1f6feb; --c: #1f6feb } .b { fill: #b35900; --c: #b35900 } .c { fill: #1a7f37; --c: #1a7f37 } .d { fill: #8250df; --c: #8250df }
path.line { fill: none; stroke: var(--c) }
@media (prefers-color-scheme: dark) {
svg { background: #14171c } text { fill: #d5dae2 } .grid { stroke: #343a44 }
.a { fill: #6cb0ff; --c: #6cb0ff } .b { fill: #f0a35e; --c: #f0a35e } .c { fill: #5fcf80; --c: #5fcf80 } .d { fill: #c6a3ff; --c: #c6a3ff }
path.line { fill: none }
}
</style>
<text class="title" x="${left}" y="26">${title}</text>
${content.join('\n')}
</svg>
`;
}

function niceMax(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 8, 10].map((step) => step * unit).find((step) => step >= value) ?? value;
}

function trim(value) {
  return Number(value.toFixed(2));
}
