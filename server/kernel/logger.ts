// Structured logs: JSON, or readable lines if the output is a terminal. Messages are constant strings; variable data
// goes into fields.
import { type Logger, type LoggerOptions, pino } from 'pino';

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

// Readable log lines, which a terminal shows instead of JSON.

type Fields = Record<string, unknown>;

const levels: Record<number, [name: string, color: string]> = {
  10: ['trace', '90'],
  20: ['debug', '90'],
  30: ['info', '36'],
  40: ['warn', '33'],
  50: ['error', '31'],
  60: ['fatal', '31'],
};

// The daemon's own name: a terminal shows one daemon.
const hiddenFields = new Set(['level', 'time', 'msg', 'err', 'worker']);

/** Formats one line of JSON from pino; returns other text unchanged. @internal */
export function toTerminalText(line: string, colors: boolean): string {
  let fields: Fields;
  try {
    fields = JSON.parse(line) as Fields;
  } catch {
    return line;
  }
  const paint = (code: string, text: string) => (colors && text !== '' ? `\x1b[${code}m${text}\x1b[0m` : text);
  const [level, color] = levels[fields.level as number] ?? ['info', '36'];
  const shown = Object.entries(fields).filter(([name]) => !hiddenFields.has(name));
  const details = shown.map(([name, value]) => `${name}=${toText(value)}`).join(' ');
  const head = [
    paint('90', timeOf(fields.time)),
    paint(color, level.padEnd(5)),
    String(fields.msg ?? ''),
    paint('90', details),
  ];
  return `${[head.filter((part) => part !== '').join(' '), ...stackOf(fields.err)].join('\n')}\n`;
}

function timeOf(time: unknown): string {
  const date = new Date(time as string);
  if (Number.isNaN(date.getTime())) return '';
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, '0')).join(':');
}

function toText(value: unknown): string {
  if (Array.isArray(value)) return value.map(toText).join(',');
  if (isJobError(value)) return JSON.stringify(`${value.code}: ${value.message}`);
  if (typeof value === 'number' && !Number.isInteger(value)) return String(Math.round(value * 1000) / 1000);
  if (typeof value !== 'string') return JSON.stringify(value);
  return /^[^\s"=]+$/.test(value) ? value : JSON.stringify(value);
}

function isJobError(value: unknown): value is { code: string; message: string } {
  return typeof value === 'object' && value !== null && 'code' in value && 'message' in value;
}

/** The stack as serialized by pino, indented below its line. */
function stackOf(error: unknown): string[] {
  if (typeof error !== 'object' || error === null) return [];
  const { stack, message } = error as { stack?: string; message?: string };
  return (stack ?? message ?? '').split('\n').map((line) => `    ${line.trim()}`);
}
