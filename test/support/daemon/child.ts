// A program of the tests in a separate process, which ends with its test.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { onTestFinished } from 'vitest';

export interface TestChild {
  process: ChildProcess;
  /** Its next line on stdout; rejects when it ends without one. */
  line(): Promise<string>;
  kill(signal: NodeJS.Signals): Promise<void>;
}

export interface ChildOptions {
  uid?: number;
  gid?: number;
  cwd?: string;
}

export function startChild(file: string, args: string[], options: ChildOptions = {}): TestChild {
  const loader = file.endsWith('.ts') ? ['--import', 'tsx'] : [];
  const child = spawn(process.execPath, [...loader, file, ...args], {
    ...options,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = once(child, 'close');
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const kill = async (signal: NodeJS.Signals) => {
    child.kill(signal);
    await ended;
  };
  onTestFinished(() => kill('SIGTERM'));
  return {
    process: child,
    line: async () => {
      const next = await lines.next();
      if (next.done) throw new Error(`${file} ended without a line`);
      return next.value;
    },
    kill,
  };
}
