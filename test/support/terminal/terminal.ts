// Programs on a pseudo-terminal, as a person sees them. Python's standard library has one; Node has none.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { onTestFailed, onTestFinished } from 'vitest';

/** False where there is no Python or no pseudo-terminal, e.g. on Windows. */
export const hasTerminals = spawnSync('python3', ['-c', 'import pty; pty.openpty()']).status === 0;

export interface OnTerminal {
  /** Everything that was shown so far, with its control sequences. */
  shown(): string;
  /** `\u0003` is Ctrl-C. */
  type(text: string): void;
  exitCode: Promise<number>;
}

export interface TerminalOptions {
  columns?: number;
  rows?: number;
  cwd: string;
  env: Record<string, string>;
}

export function runOnTerminal(program: readonly string[], options: TerminalOptions): OnTerminal {
  const { columns = 100, rows = 30, cwd, env } = options;
  const driver = `${import.meta.dirname}/run-on-terminal.py`;
  const child: ChildProcess = spawn('python3', [driver, String(columns), String(rows), ...program], {
    cwd,
    env: { PATH: process.env.PATH as string, HOME: process.env.HOME as string, TERM: 'xterm-256color', ...env },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  let shown = '';
  child.stdout?.setEncoding('utf8').on('data', (text: string) => (shown += text));
  // Input after the end of the program is dropped.
  child.stdin?.on('error', () => undefined);
  const exitCode = once(child, 'close').then(([code]) => code as number);
  onTestFailed(() => console.error(`── the terminal\n${JSON.stringify(shown.slice(-8000))}`));
  onTestFinished(async () => {
    child.kill('SIGTERM');
    await exitCode;
  });
  return { shown: () => shown, type: (text) => void child.stdin?.write(text), exitCode };
}
