// Text output: tables that fit the terminal, colours on a terminal only, ages, progress bars.
import type { Screen, Session } from './session.ts';

const colours = { red: 31, green: 32, yellow: 33, cyan: 36, dim: 2, bold: 1 } as const;
export type Colour = keyof typeof colours;

const ofStatus: Record<string, Colour> = {
  SUCCESS: 'green',
  PARTIAL: 'yellow',
  ERROR: 'red',
  PAUSED: 'yellow',
  RUNNING: 'cyan',
  CANCELED: 'dim',
};

export function paint(screen: Screen | undefined, colour: Colour | undefined, text: string): string {
  return screen?.colours && colour !== undefined ? `\u001b[${colours[colour]}m${text}\u001b[0m` : text;
}

export function colourOf(status: string): Colour | undefined {
  return ofStatus[status];
}

// Enough to recognize a value by.
const minWidth = 8;

/**
 * Formats a table as wide as the terminal. If there is no room, columns without values are dropped first. Then the
 * widest columns are cut, except the first, which is an id. Then columns are dropped from the end.
 */
export function fitTable(
  screen: Screen | undefined,
  headings: readonly string[],
  rows: readonly (readonly string[])[],
  colourAt: (row: number, column: number) => Colour | undefined = () => undefined,
): string {
  const clean = rows.map((row) => row.map(oneLine));
  const all = headings.map((heading, at) => {
    const valueWidth = Math.max(0, ...clean.map((row) => (row[at] ?? '').length));
    return { at, width: Math.max(heading.length, valueWidth), isEmpty: valueWidth === 0 };
  });
  const columns = fitColumns(all, screen?.columns() ?? Number.POSITIVE_INFINITY);
  const line = (cells: readonly string[], colour: (column: number) => Colour | undefined) =>
    columns
      .map(({ at, width }, n) => {
        const text = cut(cells[at] ?? '', width);
        return paint(screen, colour(at), n === columns.length - 1 ? text : text.padEnd(width));
      })
      .join('  ')
      .trimEnd();
  return [line(headings, () => 'dim'), ...clean.map((row, n) => line(row, (column) => colourAt(n, column)))].join('\n');
}

interface Column {
  at: number;
  width: number;
  isEmpty: boolean;
}

function fitColumns(all: readonly Column[], room: number): Column[] {
  const excess = (columns: readonly Column[]) => columns.reduce((sum, { width }) => sum + width + 2, -2) - room;
  if (excess(all) <= 0) return [...all];
  const columns = all.filter(({ at, isEmpty }) => at === 0 || !isEmpty).map((column) => ({ ...column }));
  while (excess(columns) > 0) {
    const [widest] = columns.filter(({ at, width }) => at > 0 && width > minWidth).sort((a, b) => b.width - a.width);
    if (widest !== undefined) widest.width = Math.max(minWidth, widest.width - Math.min(8, excess(columns)));
    else if (columns.length > 1) columns.pop();
    else break;
  }
  return columns;
}

/** One `name  value` line for each field. */
export function facts(pairs: Record<string, string>, decorate: (name: string, value: string) => string = asIs): string {
  const width = Math.max(...Object.keys(pairs).map((name) => name.length));
  return Object.entries(pairs)
    .map(([name, value]) => `${name.padEnd(width)}  ${decorate(name, oneLine(value))}`)
    .join('\n');
}

function asIs(_name: string, value: string): string {
  return value;
}

/** Control characters of a message or an id must not reach the terminal. */
export function oneLine(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]+/gu, ' ');
}

/** As `oneLine`, with the line breaks kept. */
export function printable(text: string): string {
  return text.split('\n').map(oneLine).join('\n');
}

function cut(text: string, width: number): string {
  return text.length <= width ? text : `${text.slice(0, Math.max(0, width - 1))}…`;
}

/** `12s`, `5m`, `3h`, `2d` since a time; empty without one. */
export function age(time: string | null | undefined, now = Date.now()): string {
  if (time === null || time === undefined) return '';
  const seconds = Math.max(0, Math.round((now - Date.parse(time)) / 1000));
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m`;
  return seconds < 86_400 ? `${Math.floor(seconds / 3600)}h` : `${Math.floor(seconds / 86_400)}d`;
}

export function bar(share: number, width: number): string {
  const full = Math.round(Math.min(1, Math.max(0, share)) * width);
  return `${'█'.repeat(full)}${'░'.repeat(width - full)}`;
}

/** A status line on standard error that is redrawn, on a terminal; nothing elsewhere. */
export class ProgressBar {
  readonly #session: Session;
  readonly #label: string;
  #drawn = false;

  constructor(session: Session, label: string) {
    this.#session = session;
    this.#label = label;
  }

  show(done: number, total: number): void {
    const { screen, err } = this.#session.terminal;
    if (screen === undefined || this.#session.json) return;
    const share = total === 0 ? 1 : done / total;
    const text = `${this.#label} ${bar(share, 24)} ${Math.floor(share * 100)} % (${done} of ${total})`;
    err(`\r\u001b[K${cut(text, screen.columns() - 1)}`);
    this.#drawn = true;
  }

  end(): void {
    if (this.#drawn) this.#session.terminal.err('\r\u001b[K');
  }
}
