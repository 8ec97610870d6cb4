// Log lines of an embedded Leasehold: to the logger of its host, or warnings and errors as JSON on standard error.
import { pino } from 'pino';
import type { Logger } from '../kernel/logger.ts';
import type { HostLogger, LogLine } from './api.ts';

const errorLevel = pino.levels.values.error ?? 50;
const warnLevel = pino.levels.values.warn ?? 40;
const infoLevel = pino.levels.values.info ?? 30;

/** `false` logs nothing. */
export function loggerFor(given: HostLogger | false | undefined, level: string): Logger {
  if (given === false) return pino({ level: 'silent' });
  if (given === undefined) {
    const toStderr = pino.destination({ fd: 2, sync: true });
    return pino({ level, base: {}, timestamp: pino.stdTimeFunctions.isoTime }, toStderr);
  }
  return pino({
    level,
    base: {},
    hooks: {
      logMethod(args, _method, levelNumber) {
        const [first, second] = args as [unknown, unknown];
        const isText = typeof first === 'string';
        const fields = { ...this.bindings(), ...(isText ? {} : (first as object)) };
        const message = isText ? first : second;
        writeOf(given, levelNumber)(fields, typeof message === 'string' ? message : undefined);
      },
    },
  });
}

function writeOf(host: HostLogger, level: number): LogLine {
  if (level >= errorLevel) return host.error.bind(host);
  if (level >= warnLevel) return host.warn.bind(host);
  if (level >= infoLevel) return host.info.bind(host);
  return (host.debug ?? host.info).bind(host);
}
