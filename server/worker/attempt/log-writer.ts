// Buffers a job's log lines and writes them in batches. A handler that logs faster than the database writes loses its
// oldest unwritten lines, and the log says how many.
import type { NewLogLine } from '../../jobs/attempt/logs.ts';
import { Coalescer } from './coalesce.ts';
import type { LogLevel } from './handler-run.ts';
import { storableText, toStorable } from './storable.ts';

interface Line {
  level: LogLevel;
  message: string;
  data?: Record<string, unknown> | undefined;
  saidAt: number;
}

interface LogBatch {
  lines: Line[];
  dropped: number;
}

export interface LogTarget {
  append(lines: NewLogLine[]): Promise<void>;
  trim(): Promise<void>;
  onError(error: unknown): void;
}

const everyMs = 250;
const maxWaiting = 1000;
const maxMessageLength = 8000;
const maxDataBytes = 16_384;
// Lines between two trims: the table holds at most this many more than it keeps.
const trimEvery = 500;

export class LogWriter {
  readonly #target: LogTarget;
  readonly #writer: Coalescer<LogBatch>;
  #sinceTrim: number;

  /** `mayHaveOld`: lines of earlier attempts may be there, so that the first trim comes with the first flush. */
  constructor(target: LogTarget, mayHaveOld: boolean) {
    this.#target = target;
    this.#sinceTrim = mayHaveOld ? trimEvery : 0;
    this.#writer = new Coalescer<LogBatch>({
      everyMs,
      delayFirst: true,
      merge: (older, newer) => bounded([...older.lines, ...newer.lines], older.dropped + newer.dropped),
      write: (batch) => this.#write(batch),
      onError: target.onError,
    });
  }

  log(level: LogLevel, message: string, data: Record<string, unknown> | undefined): void {
    const line: Line = { level, message: storableText(message, maxMessageLength), saidAt: performance.now() };
    if (data !== undefined) {
      const kept = toStorable(data, maxDataBytes, 'data');
      line.data = kept.ok ? (kept.value as Record<string, unknown>) : { not_stored: kept.error.message };
    }
    this.#writer.put({ lines: [line], dropped: 0 });
  }

  flush(): Promise<void> {
    return this.#writer.flush();
  }

  async #write({ lines, dropped }: LogBatch): Promise<void> {
    const now = performance.now();
    const said: NewLogLine[] = lines.map(({ saidAt, ...line }) => ({ ...line, ageMs: now - saidAt }));
    if (dropped > 0)
      said.unshift({ level: 'warn', message: `${dropped} lines were dropped: logged too fast`, ageMs: 0 });
    await this.#target.append(said);
    this.#sinceTrim += said.length;
    if (this.#sinceTrim < trimEvery) return;
    this.#sinceTrim = 0;
    await this.#target.trim();
  }
}

function bounded(lines: Line[], dropped: number): LogBatch {
  const over = Math.max(0, lines.length - maxWaiting);
  return { lines: over === 0 ? lines : lines.slice(over), dropped: dropped + over };
}
