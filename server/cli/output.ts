// Text for people: tables that fit the terminal, colours on a terminal only, ages, progress bars.
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

/** Columns that are too wide for the terminal are cut, the widest first; the first column, an id, never is. */
export function fitTable(
  screen: Screen | undefined,
  headings: readonly string[],
  rows: readonly (readonly string[])[],
  colourAt: (row: number, column: number) => Colour | undefined = () => undefined,
): string {
  const clean = rows.map((row) => row.map(oneLine));
  const widths = headings.map((heading, i) => Math.max(heading.length, ...clean.map((row) => (row[i] ?? '').length)));
  shrink(widths, screen?.columns() ?? Number.POSITIVE_INFINITY);
  const line = (cells: readonly string[], colour: (column: number) => Colour | undefined) =>
    cells
      .map((cell, i) => {
        const text = cut(cell, widths[i] ?? 0);
        return i === cells.length - 1
          ? paint(screen, colour(i), text)
          : paint(screen, colour(i), text.padEnd(widths[i] ?? 0));
      })
      .join('  ')
      .trimEnd();
  return [line(headings, () => 'dim'), ...clean.map((row, n) => line(row, (column) => colourAt(n, column)))].join('\n');
}

function shrink(widths: number[], columns: number): void {
  const total = () => widths.reduce((sum, width) => sum + width + 2, -2);
  while (total() > columns) {
    let widest = -1;
    for (let i = 1; i < widths.length; i++) {
      const width = widths[i] ?? 0;
      if (width > minWidth && (widest === -1 || width > (widths[widest] ?? 0))) widest = i;
    }
    if (widest === -1) return;
    widths[widest] = Math.max(minWidth, (widths[widest] ?? 0) - Math.max(1, Math.min(8, total() - columns)));
  }
}

/** Control characters of a message or an id must not reach the terminal. */
export function oneLine(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]+/gu, ' ');
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

/** A line on standard error that is drawn over, on a terminal; nothing elsewhere. */
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
