// Structured logs: JSON, or readable lines if the output is a terminal. Messages are constant strings; what varies goes
// into fields.
import { type Logger, type LoggerOptions, pino } from 'pino';
import { toTerminalText } from './terminal-log.ts';

export type { Logger };

// Lines buffered while the disk is full; more are dropped.
const bufferBytes = 1024 * 1024;

/** Lines whose `err` is already reported elsewhere are logged at debug. */
export function createLogger(level: string, isReportedElsewhere: (error: unknown) => boolean = () => false): Logger {
  const output = pino.destination({ fd: process.stdout.fd ?? 1, sync: true, maxLength: bufferBytes });
  // Without a listener a log line would throw, for example during a drain.
  output.on('error', (error: NodeJS.ErrnoException) => {
    // The terminal was closed for good.
    if (error.code === 'EIO') output.write = () => true;
  });
  const logMethod: NonNullable<LoggerOptions['hooks']>['logMethod'] = function (args, method, levelNumber) {
    const [fields] = args as unknown as [unknown];
    const quiet = levelNumber > debugLevel && hasError(fields) && isReportedElsewhere(fields.err);
    if (!quiet) method.apply(this, args);
    else if (this.isLevelEnabled('debug')) this.debug(...args);
  };
  const options = { level, base: {}, timestamp: pino.stdTimeFunctions.isoTime, hooks: { logMethod } };
  if (!process.stdout.isTTY) return pino(options, output);
  const colors = process.stdout.hasColors();
  return pino(options, { write: (line: string) => void output.write(toTerminalText(line, colors)) });
}

const debugLevel = pino.levels.values.debug ?? 20;

function hasError(fields: unknown): fields is { err: unknown } {
  return typeof fields === 'object' && fields !== null && 'err' in fields;
}
