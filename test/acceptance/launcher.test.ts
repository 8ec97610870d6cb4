// Every way in which a daemon that npm or npx started is asked to stop: it drains, and nobody is left behind.
import { spawn } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { packageRoot } from '../../server/kernel/environment.ts';
import { useBuild } from '../support/daemon/build.ts';
import { useEffects } from '../support/daemon/effects.ts';
import { type DaemonProcess, daemonProgram, startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { addJob, reread } from '../support/jobs.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();
useBuild();
const longTimeouts = { timeoutMs: 90_000 };
const npmStart: [string, ...string[]] = ['npm', 'start'];
// npx runs a program through a shell that stays between; where `sh` gives its place to the program, this one does not.
const throughShell: [string, ...string[]] = ['sh', '-c', `"${process.execPath}" ${daemonProgram.join(' ')}; exit $?`];

type Ask = (daemon: DaemonProcess, node: number) => void;
const leader = (daemon: DaemonProcess) => daemon.child.pid as number;

const ways: [string, [string, ...string[]], Ask][] = [
  ['SIGTERM to npm', npmStart, (daemon) => daemon.kill('SIGTERM')],
  ['SIGINT to npm', npmStart, (daemon) => daemon.kill('SIGINT')],
  [
    'Ctrl-C: SIGINT to the group, and npm passes on its own',
    npmStart,
    (daemon) => process.kill(-leader(daemon), 'SIGINT'),
  ],
  ['SIGTERM to the group', npmStart, (daemon) => process.kill(-leader(daemon), 'SIGTERM')],
  ['SIGTERM to node', npmStart, (_, node) => process.kill(node, 'SIGTERM')],
  ['npm is killed', npmStart, (daemon) => daemon.kill('SIGKILL')],
  ['SIGTERM to the shell of npx', throughShell, (daemon) => daemon.kill('SIGTERM')],
  ['the terminal is closed: SIGHUP to the group', throughShell, (daemon) => process.kill(-leader(daemon), 'SIGHUP')],
];

describe('drains once and ends', () => {
  test.each(ways)('%s', async (_, command, ask) => {
    const effects = await useEffects();
    const gate = effects.gate('go');
    const env = { ...effects.env, SHUTDOWN_GRACE_PERIOD_SECONDS: '120', npm_lifecycle_event: 'npx' };
    const daemon = await startProcess(context, { command, env });
    const job = await addJob(context, { type: 'work', payload: { until: gate.path } });
    await eventually(() => expect(effects.read().length).toBeGreaterThan(0), longTimeouts);
    ask(daemon, effects.read()[0]?.pid as number);
    await eventually(async () => {
      expect((await daemon.request('GET', '/readyz')).body).toMatchObject({ ready: false, drain: { running: 1 } });
    }, longTimeouts);
    gate.release();
    // Resolves when the daemon itself has closed its output, whoever ended before.
    await daemon.exited;
    expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', attempt: 1 });
    expect(daemon.output()).toContain('daemon stopped');
    expect(daemon.output()).not.toContain('at once');
  });
});

test('npm ends with the exit code of the drain', async () => {
  const daemon = await startProcess(context, { command: npmStart });
  daemon.kill('SIGTERM');
  expect(await daemon.exited).toEqual({ code: 0, signal: null });
});

describe('the launcher of a process', () => {
  const npm = { npm_lifecycle_event: 'start' };

  test('is its parent if npm started it', async () => {
    expect(await launcherSeenBy({ env: npm })).toBe(process.pid);
  });

  test('is the parent that the bootstrap remembered', async () => {
    expect(await launcherSeenBy({ env: { ...npm, LEASEHOLD_LAUNCHER_PID: '4711' } })).toBe(4711);
  });

  test('is undefined for a daemon that was started directly, or detached on purpose', async () => {
    expect(await launcherSeenBy({})).toBeNull();
    expect(await launcherSeenBy({ env: npm, detached: true })).toBeNull();
  });
});

async function launcherSeenBy(options: { env?: Record<string, string>; detached?: boolean }): Promise<number | null> {
  const code = `import('./dist/daemon/run-daemon.js').then((m) => console.log(JSON.stringify(m.findLauncher() ?? null)))`;
  const { npm_lifecycle_event: _, ...env } = process.env;
  const child = spawn(process.execPath, ['-e', code], {
    cwd: packageRoot(),
    detached: options.detached ?? false,
    env: { ...env, ...options.env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const chunks = await child.stdout.toArray();
  return JSON.parse(Buffer.concat(chunks).toString());
}
