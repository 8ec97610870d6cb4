// `npm start` as a newcomer runs it: nothing but Node, the embedded Postgres, the printed curl line.
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, onTestFinished, test } from 'vitest';
import { postmasterPid, stopPostmaster } from '../../../server/embedded-postgres/cluster.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { useBuild } from '../../support/daemon/build.ts';
import { eventually } from '../../support/eventually.ts';
import { temporaryDirectory } from '../../support/temporary.ts';

useBuild();

describe('npm start', () => {
  test('prints a curl line that runs a job to SUCCESS, and finds its data again', async () => {
    const dataDir = await dataDirectory();
    const first = npmStart(dataDir);
    const job = await runPrintedCurl(await first.screen());
    await first.stop('SIGINT');
    expect(await postgres(dataDir)).toBeUndefined();

    const second = npmStart(dataDir);
    const screen = await second.screen();
    expect(await fetchJob(screen, job)).toMatchObject({ status: 'SUCCESS' });
    expect(screen).not.toContain('shown once');
  });

  test('two at once on the same data: the second ends with a clear message', async () => {
    const dataDir = await dataDirectory();
    const first = npmStart(dataDir);
    const screen = await first.screen();
    const second = npmStart(dataDir);
    await second.ended;
    expect(second.process.exitCode).toBe(1);
    expect(second.text()).toContain('is using the data in');
    await runPrintedCurl(screen);
  });

  test('recovers after it was killed with all its processes', async () => {
    const dataDir = await dataDirectory();
    const first = npmStart(dataDir);
    const job = await runPrintedCurl(await first.screen());
    process.kill((await postgres(dataDir)) as number, 'SIGKILL');
    await first.stop('SIGKILL');
    const second = npmStart(dataDir);
    expect(await fetchJob(await second.screen(), job)).toMatchObject({ status: 'SUCCESS' });
  });

  test('leaves no postgres if it is interrupted at any moment of its start', async () => {
    const dataDir = await dataDirectory();
    const first = npmStart(dataDir);
    // The earliest moment at which there is one to leave.
    await eventually(async () => expect(await postgres(dataDir)).toBeDefined(), { timeoutMs: 60_000, everyMs: 5 });
    await first.stop('SIGINT');
    await eventually(async () => expect(await postgres(dataDir)).toBeUndefined());
  });
});

async function dataDirectory(): Promise<string> {
  const parent = await temporaryDirectory('first-start');
  await chmod(parent, 0o755);
  const dataDir = join(parent, 'data');
  onTestFinished(async () => {
    const home = await realpath(join(dataDir, 'postgres')).catch(() => undefined);
    if (home) await stopPostmaster(home);
  });
  return dataDir;
}

async function postgres(dataDir: string): Promise<number | undefined> {
  return postmasterPid(await realpath(join(dataDir, 'postgres')));
}

function npmStart(dataDir: string) {
  const { DATABASE_URL: _, ...env } = process.env;
  const child: ChildProcess = spawn(process.execPath, ['scripts/bootstrap.mjs', 'start'], {
    cwd: packageRoot(),
    env: { ...env, NODE_ENV: undefined, DATA_DIR: dataDir, PORT: '0' },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream?.on('data', (chunk) => (text += chunk));
  const ended = once(child, 'close');
  const stop = async (signal: NodeJS.Signals) => {
    child.kill(signal);
    await ended;
  };
  onTestFinished(() => stop('SIGTERM'));
  /** Everything printed, once the last lines are there. */
  const screen = () =>
    eventually(
      () => {
        expect(text).toMatch(/See its status:\n.*\n/);
        return text;
      },
      { timeoutMs: 120_000 },
    );
  return { process: child, text: () => text, ended, stop, screen };
}

async function runPrintedCurl(screen: string): Promise<string> {
  const line = /^ *(curl -X POST .*)$/m.exec(screen)?.[1] ?? '';
  const { id } = JSON.parse(await pasted(line)) as { id: string };
  await eventually(async () => expect(await fetchJob(screen, id)).toMatchObject({ status: 'SUCCESS' }));
  return id;
}

/** The line in a shell; by its parts where the machine has no curl. */
async function pasted(line: string): Promise<string> {
  try {
    return (await promisify(execFile)('sh', ['-c', `${line} -s`])).stdout;
  } catch (error) {
    if ((error as { code?: unknown }).code !== 127) throw error;
  }
  const [url = '', authorization = '', body = ''] = [/POST (\S+)/, /Authorization: ([^']+)/, /-d '(.*)'/].map(
    (part) => part.exec(line)?.[1],
  );
  const headers = { authorization, 'content-type': 'application/json' };
  return (await fetch(url, { method: 'POST', headers, body })).text();
}

async function fetchJob(screen: string, id: string): Promise<unknown> {
  const address = /running at (\S+)/.exec(screen)?.[1];
  const key = /Key of tenant "demo": (\S+)/.exec(screen)?.[1];
  const answer = await fetch(`${address}/api/jobs/${id}`, { headers: { authorization: `Bearer ${key}` } });
  return answer.json();
}
