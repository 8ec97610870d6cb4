import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, mkdtemp, readFile, realpath, rm, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { findRunner } from '../../../server/embedded-postgres/binaries.ts';
import { postmasterPid, stopPostmaster } from '../../../server/embedded-postgres/cluster.ts';
import { startEmbeddedPostgres } from '../../../server/embedded-postgres/start.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { useProgram } from '../../support/daemon/build.ts';
import { startChild } from '../../support/daemon/child.ts';
import { eventually } from '../../support/eventually.ts';
import { copyForEveryone, openDirectory } from '../../support/postgres/open-copy.ts';
import { temporaryDirectory } from '../../support/temporary.ts';

const isRoot = process.getuid?.() === 0;
const nobody = { uid: 65534, gid: 65534 };
const nobodyHasNode = await (await findRunner(nobody)).canReach(process.execPath);

const program = 'test/support/postgres/run-embedded.ts';
const compiled = useProgram(program);
let template: string;

beforeAll(async () => {
  template = await mkdtemp(join(tmpdir(), 'leasehold-embedded-'));
  await chmod(template, 0o755);
  const postgres = await startEmbeddedPostgres({ dataDir: join(template, 'data'), logger: createLogger('silent') });
  await postgres.stop();
});
afterAll(() => rm(template, { recursive: true, force: true }));

describe('embedded postgres', () => {
  test('keeps its data, its port and its password from start to start and leaves nothing running', async () => {
    const dataDir = await usedDirectory();
    const first = owner(dataDir);
    const url = await first.url();
    await ask(url, 'create table kept (id integer)');
    expect(await ask(url, 'show fsync')).toEqual([{ fsync: 'on' }]);
    expect(await ask(url, 'show listen_addresses')).toEqual([{ listen_addresses: '127.0.0.1' }]);
    await first.kill('SIGTERM');
    expect(await running(dataDir)).toBeUndefined();
    const second = owner(dataDir);
    expect(await second.url()).toBe(url);
    expect(await ask(url, 'select * from kept')).toEqual([]);
    expect((await stat(join(dataDir, 'postgres.json'))).mode & 0o777).toBe(0o600);
  });

  test('two at once on the same data: the second is refused with a clear message', async () => {
    const dataDir = await usedDirectory();
    const first = owner(dataDir);
    const url = await first.url();
    const second = owner(dataDir);
    expect(await second.line()).toMatch(/^refused another Leasehold \(process \d+\) is using the data in/);
    await ask(url, 'select 1');
  });

  test('five starts at the same moment end with one owner and one postmaster', async () => {
    const dataDir = await dataDirectory();
    await mkdir(dataDir);
    // A lock left by a process that is gone: all five find it stale.
    await writeFile(join(dataDir, 'daemon.lock'), '999999999 gone 1 abcdef01');
    const lines = await Promise.all(Array.from({ length: 5 }, () => owner(dataDir).line()));
    expect(lines.filter((line) => line.startsWith('ready'))).toHaveLength(1);
    expect(lines.filter((line) => line.startsWith('refused another Leasehold'))).toHaveLength(4);
  });

  test('the postgres of a killed daemon is taken over', async () => {
    const dataDir = await usedDirectory();
    const first = owner(dataDir);
    const url = await first.url();
    const pid = await running(dataDir);
    await first.kill('SIGKILL');
    const second = owner(dataDir);
    expect(await second.url()).toBe(url);
    expect(await running(dataDir)).toBe(pid);
    await second.kill('SIGTERM');
    expect(await running(dataDir)).toBeUndefined();
  });

  test('a postgres that does not answer is stopped before another is started', async () => {
    const dataDir = await usedDirectory();
    const first = owner(dataDir);
    await first.url();
    const pid = (await running(dataDir)) as number;
    await first.kill('SIGKILL');
    // Its port is not the one that we remember: nobody answers there.
    await forgetPort(dataDir);
    const second = owner(dataDir);
    await ask(await second.url(), 'select 1');
    expect(await running(dataDir)).not.toBe(pid);
  });

  test('everything killed at once: the next start recovers', async () => {
    const dataDir = await usedDirectory();
    const first = owner(dataDir);
    const url = await first.url();
    await ask(url, 'create table kept (id integer)');
    const pid = (await running(dataDir)) as number;
    const gone = first.kill('SIGKILL');
    process.kill(pid, 'SIGKILL');
    // As long as nobody has waited for it, it counts as running.
    await gone;
    const second = owner(dataDir);
    expect(await ask(await second.url(), 'select * from kept')).toEqual([]);
  });

  test('a postmaster that dies is started again', async () => {
    const dataDir = await usedDirectory();
    const first = owner(dataDir);
    const url = await first.url();
    const pid = (await running(dataDir)) as number;
    process.kill(pid, 'SIGKILL');
    await eventually(() => ask(url, 'select 1'));
    expect(await running(dataDir)).not.toBe(pid);
  });

  test('a stale postmaster.pid with the pid of another program harms neither', async () => {
    const dataDir = await usedDirectory();
    const first = owner(dataDir);
    await first.url();
    await first.kill('SIGTERM');
    const stranger = spawn('sleep', ['600']);
    onTestFinished(async () => {
      stranger.kill('SIGKILL');
      if (stranger.signalCode === null) await once(stranger, 'exit');
    });
    await writeFile(join(dataDir, 'postgres', 'postmaster.pid'), `${stranger.pid}\n`);
    const second = owner(dataDir);
    await ask(await second.url(), 'select 1');
    await second.kill('SIGTERM');
    expect(stranger.exitCode ?? stranger.signalCode).toBeNull();
  });

  test('a port taken by another program is replaced', async () => {
    const dataDir = await usedDirectory();
    const first = owner(dataDir);
    const url = await first.url();
    await first.kill('SIGTERM');
    const stranger = createServer((socket) => socket.destroy()).listen(Number(new URL(url).port), '127.0.0.1');
    onTestFinished(() => new Promise((resolve) => stranger.close(() => resolve())));
    await once(stranger, 'listening');
    const second = owner(dataDir);
    const moved = await second.url();
    expect(moved).not.toBe(url);
    await ask(moved, 'select 1');
  });

  test('data of another major version is refused and left untouched', async () => {
    const dataDir = await dataDirectory();
    await mkdir(join(dataDir, 'postgres'), { recursive: true });
    await writeFile(join(dataDir, 'postgres', 'PG_VERSION'), '15\n');
    expect(await owner(dataDir).line()).toMatch(/^refused .*was written by Postgres 15, and this Leasehold brings/);
    expect(await readFile(join(dataDir, 'postgres', 'PG_VERSION'), 'utf8')).toBe('15\n');
  });

  test('an initdb that was killed half-way is done again', async () => {
    const dataDir = await dataDirectory();
    await mkdir(join(dataDir, 'postgres.new'), { recursive: true });
    await writeFile(join(dataDir, 'postgres.new', 'PG_VERSION'), '18\n');
    await ask(await owner(dataDir).url(), 'select 1');
  });

  test('a lost password is reported clearly', async () => {
    const dataDir = await usedDirectory();
    const first = owner(dataDir);
    await first.url();
    await first.kill('SIGTERM');
    await rm(join(dataDir, 'postgres.json'));
    expect(await owner(dataDir).line()).toMatch(/^refused .*does not accept the password/);
    expect(await running(dataDir)).toBeUndefined();
  });

  test('a data directory that is a file is reported clearly', async () => {
    const dataDir = await dataDirectory();
    await writeFile(dataDir, '');
    expect(await owner(dataDir).line()).toMatch(/^refused .* is not a directory; set DATA_DIR elsewhere/);
  });

  test.runIf(isRoot)('as root it runs as another user, even in a directory that this user cannot enter', async () => {
    const dataDir = await dataDirectory();
    await chmod(join(dataDir, '..'), 0o700);
    await ask(await owner(dataDir).url(), 'select 1');
    const home = await realpath(join(dataDir, 'postgres'));
    onTestFinished(() => rm(home, { recursive: true, force: true }));
    expect((await stat(home)).uid).not.toBe(0);
  });

  // A Node that lies in root's home cannot be started by anybody else.
  test.runIf(isRoot && nobodyHasNode)(
    'without root it runs as the current user, and reports missing write permission',
    async () => {
      const cwd = await copyForEveryone(['tsx', 'pg', 'pino', 'embedded-postgres']);
      const dataDir = join(await openDirectory(), 'data');
      const start = () => startChild(join(cwd, program), [dataDir], { ...nobody, cwd });
      expect(await start().line()).toMatch(/^refused no permission to write to/);
      await chmod(join(dataDir, '..'), 0o777);
      const child = start();
      await ask((await child.line()).replace('ready ', ''), 'select 1');
      expect((await stat(join(dataDir, 'postgres'))).uid).toBe(nobody.uid);
    },
  );
});

/** A place for data that does not exist yet; whatever a test leaves running there is stopped. */
async function dataDirectory(): Promise<string> {
  const parent = await temporaryDirectory('embedded');
  // Made for its owner only, which root's postgres is not.
  await chmod(parent, 0o755);
  const dataDir = join(parent, 'data');
  onTestFinished(async () => {
    const home = await realpath(join(dataDir, 'postgres')).catch(() => undefined);
    if (home) await stopPostmaster(home);
  });
  return dataDir;
}

/** The same with data in it, copied from one first start: initdb is the slow part. */
async function usedDirectory(): Promise<string> {
  const dataDir = await dataDirectory();
  await promisify(execFile)('cp', ['-a', join(template, 'data'), dataDir]);
  return dataDir;
}

function owner(dataDir: string) {
  const child = startChild(compiled.path, [dataDir]);
  const url = async () => {
    const line = await child.line();
    expect(line).toMatch(/^ready postgres:/);
    return line.replace('ready ', '');
  };
  return { ...child, url };
}

async function running(dataDir: string): Promise<number | undefined> {
  return postmasterPid(await realpath(join(dataDir, 'postgres')));
}

async function forgetPort(dataDir: string): Promise<void> {
  const file = join(dataDir, 'postgres.json');
  const credentials = JSON.parse(await readFile(file, 'utf8'));
  await writeFile(file, JSON.stringify({ ...credentials, port: 1 }));
}

async function ask(url: string, statement: string): Promise<unknown[]> {
  const client = new pg.Client(url);
  client.on('error', () => {});
  await client.connect();
  try {
    return (await client.query(statement)).rows;
  } finally {
    await client.end();
  }
}
