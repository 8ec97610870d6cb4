// The two programs as a person runs them: the same settings, help, and plain words for what keeps them from starting.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, readdir, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { packageRoot, packageVersion } from '../../../server/kernel/environment.ts';
import { findTenant } from '../../../server/tenants/tenant-store.ts';
import { createEmptyDatabase, useDatabase } from '../../support/postgres/database.ts';
import { temporaryDirectory } from '../../support/temporary.ts';

// Each test starts processes that compile the sources: seconds each on a busy machine.
vi.setConfig({ testTimeout: 240_000 });

const context = useDatabase();
const tsx = join(dirname(createRequire(import.meta.url).resolve('tsx/package.json')), 'dist/loader.mjs');

interface Ran {
  code: number;
  out: string;
  err: string;
}

async function run(
  program: 'cli/main' | 'main',
  args: string[],
  cwd: string,
  env: Record<string, string> = {},
  nodeArgs: string[] = [],
): Promise<Ran> {
  const file = join(packageRoot(), 'server', `${program}.ts`);
  const child = spawn(process.execPath, ['--import', pathToFileURL(tsx).href, ...nodeArgs, file, ...args], {
    cwd,
    env: { PATH: process.env.PATH as string, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  onTestFinished(() => void child.kill('SIGKILL'));
  let out = '';
  let err = '';
  child.stdout.on('data', (chunk) => (out += chunk));
  child.stderr.on('data', (chunk) => (err += chunk));
  const [code] = (await once(child, 'close')) as [number];
  return { code, out, err };
}

describe('settings', () => {
  test('the command line reads .env like the daemon', async () => {
    const directory = await temporaryDirectory('settings');
    await writeFile(join(directory, '.env'), `DATABASE_URL=${context.url}\nPORT=12345\n`);
    expect(await run('cli/main', ['tenants', 'create', 'from_env_file'], directory)).toMatchObject({
      code: 0,
      err: '',
    });
    expect(await findTenant(context.db, 'from_env_file')).toMatchObject({ status: 'ACTIVE' });
    const { out } = await run('cli/main', ['config'], directory, { PORT: '54321' });
    expect(out).toMatch(/PORT +54321/);
    expect(out).toContain(new URL(context.url).pathname.slice(1));
  });

  test('a .env that cannot be read is named', async () => {
    const directory = await temporaryDirectory('settings');
    await mkdir(join(directory, '.env'));
    for (const program of ['cli/main', 'main'] as const) {
      const ran = await run(program, program === 'main' ? [] : ['config'], directory);
      expect(ran.code).toBeGreaterThan(0);
      expect(ran.err).toContain(`${join(directory, '.env')} cannot be read`);
      expect(ran.err).not.toContain('    at ');
    }
  });
});

test('both programs print their version and usage', async () => {
  const directory = await temporaryDirectory('programs');
  for (const program of ['cli/main', 'main'] as const) {
    expect(await run(program, ['--version'], directory)).toEqual({ code: 0, out: `${packageVersion()}\n`, err: '' });
    expect(await run(program, ['--help'], directory)).toMatchObject({
      code: 0,
      out: expect.stringContaining('Usage: leasehold'),
    });
  }
  expect(await run('main', ['--port', '1'], directory)).toMatchObject({
    code: 2,
    err: expect.stringContaining('--help'),
  });
});

test('both programs refuse an old Node in one sentence', async () => {
  const directory = await temporaryDirectory('old-node');
  const oldNode = "data:text/javascript,Object.defineProperty(process.versions,'node',{value:'18.20.4'})";
  for (const program of ['cli/main', 'main'] as const) {
    expect(await run(program, [], directory, {}, ['--import', oldNode])).toEqual({
      code: 1,
      out: '',
      err: 'leasehold: Node 20.19 or newer is needed; this is Node 18.20.4\n',
    });
  }
});

test('a command in a directory without data says so, and creates no database there', async () => {
  const directory = await temporaryDirectory('no-data');
  const ran = await run('cli/main', ['jobs', 'list'], directory);
  expect(ran).toMatchObject({ code: 3, out: '' });
  expect(ran.err).toContain(`there is no database in ${join(directory, '.leasehold')}`);
  expect(await readdir(directory)).toEqual([]);
});

describe('errors that keep a daemon from starting have a clear message', () => {
  const fails = async (env: Record<string, string>, ...words: string[]) => {
    const ran = await run('main', [], await temporaryDirectory('start'), { LOG_LEVEL: 'fatal', ...env });
    expect(ran.code).toBe(1);
    for (const word of words) expect(ran.err).toContain(word);
    expect(ran.err.trim().split('\n')).toHaveLength(1);
  };

  test('a port that is in use', async () => {
    const server = createServer().listen(0, '127.0.0.1');
    onTestFinished(() => void server.close());
    await once(server, 'listening');
    const { port } = server.address() as { port: number };
    await fails({ DATABASE_URL: context.url, PORT: String(port) }, `port ${port} on 127.0.0.1 is in use`, 'set PORT');
  });

  test('a database role without the rights', async () => {
    const { url, drop } = await createEmptyDatabase();
    const role = `poor_${process.pid}`;
    await context.db.query(`create role ${role} login password 'poor'`);
    onTestFinished(async () => {
      await drop();
      await context.db.query(`drop role ${role}`);
    });
    const poor = Object.assign(new URL(url), { username: role, password: 'poor' }).href;
    await fails({ DATABASE_URL: poor, PORT: '0' }, 'lacks a right', 'permission denied', 'GRANT CREATE ON DATABASE');
    const ran = await run('cli/main', ['migrate'], await temporaryDirectory('start'), { DATABASE_URL: poor });
    expect(ran).toMatchObject({ code: 1, err: expect.stringContaining('GRANT CREATE ON DATABASE') });
  });

  test.skipIf(process.getuid?.() === 0)('a directory without the rights', async () => {
    const directory = await temporaryDirectory('closed');
    await chmod(directory, 0o500);
    await fails({ DATA_DIR: join(directory, 'data'), PORT: '0' }, 'no permission to write');
  });
});
