// Structured logs. Messages are constant strings; what varies goes into fields.
import { type Logger, pino } from 'pino';

export type { Logger };

// Lines that wait for a disk that is full; more are dropped.
const bufferBytes = 1024 * 1024;

export function createLogger(level: string, fields: Record<string, unknown> = {}): Logger {
  const output = pino.destination({ fd: process.stdout.fd ?? 1, sync: true, maxLength: bufferBytes });
  // Without a listener a log line would throw, in the middle of a drain for example.
  output.on('error', (error: NodeJS.ErrnoException) => {
    // The terminal was closed and does not come back.
    if (error.code === 'EIO') output.write = () => true;
  });
  return pino({ level, base: fields, timestamp: pino.stdTimeFunctions.isoTime }, output);
}
