// Whether a postmaster runs on a data directory. postmaster.pid alone is no proof: after a crash its
// pid may belong to another program, and signalling that one would be worse than any orphan.
import { execFile } from 'node:child_process';
import { readFile, readlink, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

/** The pid of the live postmaster of this data directory, if there is one. */
export async function postmasterPid(directory: string): Promise<number | undefined> {
  const text = await readFile(join(directory, 'postmaster.pid'), 'utf8').catch(() => '');
  const pid = Number(text.split('\n')[0]);
  if (!Number.isInteger(pid) || pid <= 0) return undefined;
  return (await isPostmasterOf(pid, directory)) ? pid : undefined;
}

async function isPostmasterOf(pid: number, directory: string): Promise<boolean> {
  const real = await realpath(directory).catch(() => directory);
  if (process.platform !== 'linux') return (await commandLine(pid)).some((word) => word === directory || word === real);
  const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '');
  if (!/postgres/.test(command)) return false;
  // A postmaster works inside its data directory. A zombie has neither a directory nor a command.
  const cwd = await readlink(`/proc/${pid}/cwd`).catch(() => undefined);
  return cwd === undefined ? command.split('\0').some((word) => word === directory || word === real) : cwd === real;
}

async function commandLine(pid: number): Promise<string[]> {
  const run = promisify(execFile);
  const { stdout } = await run('ps', ['-o', 'command=', '-p', String(pid)]).catch(() => ({ stdout: '' }));
  return stdout.trim().split(/\s+/);
}

// Fast shutdown ends sessions and checkpoints; immediate leaves the rest to recovery; then force.
const escalation = [
  ['SIGINT', 60_000],
  ['SIGQUIT', 10_000],
  ['SIGKILL', 10_000],
] as const;

/** Stops the postmaster of a data directory, if one runs; resolves when it is gone. */
export async function stopPostmaster(directory: string): Promise<void> {
  for (const [signal, waitMs] of escalation) {
    const pid = await postmasterPid(directory);
    if (pid === undefined) return;
    process.kill(pid, signal);
    const deadline = performance.now() + waitMs;
    while (performance.now() < deadline) {
      // Not the file: it goes away before the process does.
      if (!(await isPostmasterOf(pid, directory))) return;
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
  }
  throw new Error(`the postgres on ${directory} cannot be stopped`);
}
