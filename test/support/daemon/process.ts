// A daemon in a separate process, used over HTTP, killed and stopped from outside.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';

import { onTestFailed, onTestFinished } from 'vitest';
import { freePort } from '../../../server/embedded-postgres/cluster.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { eventually } from '../eventually.ts';
import type { TenantContext } from '../postgres/database.ts';
import { buildOnce, compileForBuild } from './build.ts';
import { fastSettings } from './daemon.ts';

const root = packageRoot();

/** The program that node runs for a daemon: the build, as for users. */
export const daemonProgram = ['dist/main.js'];

/** Fast, but with leases that a crowded machine does not lose by itself. */
const settings: Record<string, string> = {
  ...fastSettings,
  LOG_LEVEL: 'info',
  HEARTBEAT_INTERVAL_SECONDS: '0.3',
  LEASE_SECONDS: '120',
  STALE_LEASE_GRACE_SECONDS: '0.5',
  SWEEP_INTERVAL_SECONDS: '0.3',
  DEMO_TENANT: 'never',
};

export interface DaemonProcess {
  name: string;
  url: string;
  /** A key with all scopes. */
  key: string;
  child: ChildProcess;
  /** How it ended; pending while it lives. */
  exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>;
  kill(signal: NodeJS.Signals): void;
  isReady(): Promise<boolean>;
  request(
    method: string,
    path: string,
    body?: unknown,
  ): Promise<{ status: number; body: { id: string; status: string } }>;
  /** Ready for traffic: migrated, connected, not draining. */
  ready(): Promise<DaemonProcess>;
  output(): string;
}

export interface ProcessOptions {
  name?: string;
  env?: Record<string, string>;
  /** A program that starts the daemon in a new process group. By default node starts it in this group. */
  command?: [string, ...string[]];
}

let count = 0;

/** Starts a daemon on the context's database and waits until it is ready. */
export async function startProcess(
  context: Pick<TenantContext, 'db' | 'url' | 'tenant'>,
  options: ProcessOptions = {},
): Promise<DaemonProcess> {
  return (await launchProcess(context, options)).ready();
}

export async function launchProcess(
  context: Pick<TenantContext, 'db' | 'url' | 'tenant'>,
  { name = `daemon-${++count}`, env = {}, command }: ProcessOptions = {},
): Promise<DaemonProcess> {
  const key = (await createApiKey(context.db, { tenantId: context.tenant.id, name, scopes: [...scopes] })).text;
  await buildOnce();
  const handlers = await compileForBuild('test/fixtures/work.ts');
  const port = await freePort();
  const [program, ...args] = command ?? [process.execPath, ...daemonProgram];
  // As under npm: it drains when the process of the test is gone.
  const launched = { npm_lifecycle_event: 'test', LEASEHOLD_LAUNCHER_PID: String(process.pid) };
  const ours = {
    ...settings,
    ...(command === undefined && launched),
    HANDLERS: handlers,
    PORT: String(port),
    DATABASE_URL: context.url,
    WORKER_ID: name,
  };
  const child = spawn(program, args, {
    cwd: root,
    detached: command !== undefined,
    env: { ...withoutSettings(), ...ours, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (output += String(data)));
  const exited = once(child, 'close').then(([code, signal]) => ({ code, signal }));
  const url = `http://127.0.0.1:${port}`;
  const daemon: DaemonProcess = {
    name,
    url,
    key,
    child,
    exited,
    kill: (signal) => void child.kill(signal),
    output: () => output,
    isReady: async () => (await fetch(`${url}/readyz`)).ok,
    request: async (method, path, body) => {
      const response = await fetch(`${url}${path}`, {
        method,
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      return { status: response.status, body: (await response.json()) as { id: string; status: string } };
    },
    ready: async () => {
      await eventually(
        async () => {
          if (child.exitCode !== null) return;
          if (!(await daemon.isReady())) throw new Error(`${name} is not ready`);
        },
        { timeoutMs: 60_000, everyMs: 100 },
      );
      if (child.exitCode !== null) throw new Error(`${name} ended with ${child.exitCode}:\n${output}`);
      return daemon;
    },
  };
  onTestFailed(() => console.error(`── output of ${name}\n${output.slice(-8000)}`));
  onTestFinished(async () => {
    if (command === undefined) child.kill('SIGKILL');
    else killGroup(child);
    await exited;
  });
  return daemon;
}

/** Also those of the group whose leader is gone. */
function killGroup(leader: ChildProcess): void {
  try {
    process.kill(-(leader.pid as number), 'SIGKILL');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

/** A developer's own settings have no say in a test. */
function withoutSettings(): NodeJS.ProcessEnv {
  const { PATH, HOME, TMPDIR, NODE_OPTIONS } = process.env;
  return Object.fromEntries(
    Object.entries({ PATH, HOME, TMPDIR, NODE_OPTIONS }).filter(([, value]) => value !== undefined),
  );
}
