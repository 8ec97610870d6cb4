// Structured logs. Messages are constant strings; what varies goes into fields.
import { type Logger, pino } from 'pino';

export type { Logger };

export function createLogger(level: string, fields: Record<string, unknown> = {}): Logger {
  return pino({ level, base: fields, timestamp: pino.stdTimeFunctions.isoTime });
}
