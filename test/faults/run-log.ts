// The logs of one run: a directory of files with one JSON record per line, appended and never changed. The checker reads
// nothing else.
import { appendFileSync, closeSync, existsSync, fstatSync, openSync, readSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** A record with its place, to name it in a violation. */
export type Logged<T> = T & { place: string };

interface ReadFile {
  /** Up to the end of the last whole line. */
  bytes: number;
  records: Logged<object>[];
}

export class RunLog {
  readonly directory: string;
  /** Files grow to megabytes and are read many times a second, in the process that also runs the proxies. */
  readonly #files = new Map<string, ReadFile>();

  constructor(directory: string) {
    this.directory = directory;
  }

  path(file: string): string {
    return join(this.directory, file);
  }

  append(file: string, record: object): void {
    appendFileSync(this.path(file), `${JSON.stringify(record)}\n`);
  }

  write(file: string, records: readonly object[]): void {
    this.#files.delete(file);
    writeFileSync(this.path(file), records.map((record) => `${JSON.stringify(record)}\n`).join(''));
  }

  /** All records so far. Parses only what was appended since the last call. */
  read<T extends object>(file: string): Logged<T>[] {
    const known = this.#files.get(file) ?? { bytes: 0, records: [] };
    this.#files.set(file, known);
    const added = readFrom(this.path(file), known.bytes);
    // Another process may be writing the last line.
    const whole = added.subarray(0, added.lastIndexOf('\n') + 1);
    known.bytes += whole.length;
    for (const line of whole.toString('utf8').split('\n')) {
      if (line === '') continue;
      known.records.push({ ...(JSON.parse(line) as T), place: `${file}:${known.records.length + 1}` });
    }
    return [...known.records] as Logged<T>[];
  }
}

function readFrom(path: string, position: number): Buffer {
  if (!existsSync(path)) return Buffer.alloc(0);
  const file = openSync(path, 'r');
  try {
    const buffer = Buffer.alloc(Math.max(0, fstatSync(file).size - position));
    return buffer.subarray(0, readSync(file, buffer, 0, buffer.length, position));
  } finally {
    closeSync(file);
  }
}

/** Monotonic milliseconds of the machine: comparable between its processes, not affected by a changed clock. */
export function machineMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}
