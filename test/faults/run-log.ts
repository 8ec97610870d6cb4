// The logs of one run: a directory of files with one JSON record per line, appended and never changed. The checker reads
// nothing else.
import { appendFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** A record with its place, to name it in a violation. */
export type Logged<T> = T & { place: string };

export class RunLog {
  readonly directory: string;

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
    writeFileSync(this.path(file), records.map((record) => `${JSON.stringify(record)}\n`).join(''));
  }

  read<T extends object>(file: string): Logged<T>[] {
    if (!existsSync(this.path(file))) return [];
    const lines = readFileSync(this.path(file), 'utf8').split('\n');
    return lines.flatMap((line, index) =>
      line === '' ? [] : [{ ...(JSON.parse(line) as T), place: `${file}:${index + 1}` }],
    );
  }
}

/** Monotonic milliseconds of the machine: comparable between its processes, not affected by a changed clock. */
export function machineMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}
