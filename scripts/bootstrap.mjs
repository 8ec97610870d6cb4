// What `npm start` and `npm test` run, before anything is installed: Node's own modules only.
// Checks Node, installs when the lock changed, builds when the source changed, then runs the thing.
import { spawnSync } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { buildWhenStale, isStale, writeDeclarations } from './bootstrap/build.mjs';
import { readOr, root, UserError } from './bootstrap/files.mjs';
import { installWhenChanged, isInstalledAsMarked } from './bootstrap/install.mjs';

const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
const [command = 'start', ...rest] = process.argv.slice(2);
// Installing and building take a while: whether npm was stopped meanwhile is seen by its pid.
const launcher = process.ppid;

// What each command needs: the packages, and whether it needs the build. Declarations are written by the TypeScript
// compiler, a tool of developers.
const commands = {
  start: { scope: 'runtime', builds: true, run: start },
  test: { scope: 'all', run: test },
  'test-on': { scope: 'all', run: testOn },
  'test-through': { scope: 'all', run: testThrough },
  'test-cluster': { scope: 'all', run: testCluster },
  build: { scope: 'runtime', builds: true },
  pack: { scope: 'all', builds: true, declares: true },
  install: { scope: 'all' },
};

checkNode();
if (!Object.hasOwn(commands, command)) {
  fail(`bootstrap does not know "${command}"; it knows ${Object.keys(commands).join(', ')}`);
}
await prepare(commands[command]).catch(explain);
await commands[command].run?.(rest);

async function prepare({ scope, builds = false, declares = false }) {
  if (isInstalledAsMarked(scope) && !(builds && isStale()) && !declares) return;
  await alone(async () => {
    await installWhenChanged(scope);
    if (builds) await buildWhenStale();
    if (declares) await writeDeclarations();
  });
}

async function start(args) {
  process.env.LEASEHOLD_LAUNCHER_PID = String(launcher);
  await become(join(root, 'dist', 'main.js'), args);
}

async function test(args) {
  await become(vitest, ['run', ...args]);
}

/** The tests against a Postgres of yours instead of the embedded one. */
async function testOn([url = process.env.TEST_DATABASE_URL, ...args]) {
  if (!url?.startsWith('postgres')) fail('say which Postgres: npm run test:postgres -- postgres://user@host/database');
  process.env.TEST_DATABASE_URL = url;
  await test(args);
}

/** The integration tests through a pooler: databases are created on the server itself, and used through the pooler. */
async function testThrough([pooler, direct, ...args]) {
  if (!pooler?.startsWith('postgres') || !direct?.startsWith('postgres')) {
    fail('say which: npm run test:pgbouncer -- postgres://…:6432/postgres postgres://…:5432/postgres [tests]');
  }
  process.env.TEST_DATABASE_URL = direct;
  process.env.TEST_POOLER_URL = pooler;
  await test(args.length > 0 ? args : ['test/integration']);
}

/** The integration tests on a Citus cluster, and the scenarios that only a cluster has. */
async function testCluster(args) {
  if (!process.env.CITUS_COORDINATOR_URL || !process.env.CITUS_WORKER_URLS) {
    fail(
      'set CITUS_COORDINATOR_URL, and CITUS_WORKER_URLS to a list with commas: URLs of a role that may create databases and extensions',
    );
  }
  if (args.length > 0) return test(args);
  // One file after the other, because one of the scenarios kills a node.
  const scenarios = [vitest, 'run', 'test/citus', '--no-file-parallelism'];
  const { status } = spawnSync(process.execPath, scenarios, {
    cwd: root,
    // It would be stronger than the option.
    env: { ...process.env, VITEST_MAX_WORKERS: '1' },
    stdio: 'inherit',
  });
  if (status !== 0) process.exit(status ?? 1);
  await test(['test/integration']);
}

function checkNode() {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  if (major > 20 || (major === 20 && minor >= 19)) return;
  fail(
    `Leasehold needs Node 20.19 or newer. This is Node ${process.versions.node}. Get a newer one at https://nodejs.org`,
  );
}

/** Two commands in a fresh clone at once must not install and build over each other. */
async function alone(work) {
  const lock = join(root, '.leasehold-bootstrap.lock');
  for (let isReported = false; !tryLock(lock); isReported = true) {
    const owner = Number(readOr(lock));
    if (owner > 0 && !isAlive(owner)) rmSync(lock, { force: true });
    if (!isReported) console.log('Waiting for another command that installs or builds');
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  // process.exit in the middle must not leave the lock behind.
  const release = () => rmSync(lock, { force: true });
  process.once('exit', release);
  await work();
  process.removeListener('exit', release);
  release();
}

function tryLock(lock) {
  try {
    writeFileSync(lock, String(process.pid), { flag: 'wx' });
    return true;
  } catch (error) {
    if (error.code === 'EEXIST') return false;
    throw error;
  }
}

function isAlive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

/** Continues as another program in this very process: no signal to pass on, no child to leave behind. */
async function become(file, args) {
  process.chdir(root);
  process.argv.splice(1, process.argv.length, file, ...args);
  process.setSourceMapsEnabled(true);
  await import(pathToFileURL(file).href);
}

/** What a person can mend, without a stack. */
function explain(error) {
  if (error instanceof UserError) fail(error.message);
  const reasons = {
    EACCES: 'no permission to write to',
    EPERM: 'no permission to write to',
    EROFS: 'on a read-only file system:',
    ENOSPC: 'no room is left on the disk of',
  };
  const reason = reasons[error.code];
  if (reason === undefined) throw error;
  fail(`cannot install or build: ${reason} ${error.path ?? root}; run it as the owner of ${root}`);
}

function fail(message) {
  console.error(message);
  process.exit(1);
}
