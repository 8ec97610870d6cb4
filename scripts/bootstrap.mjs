// What `npm start` and `npm test` run, before anything is installed: Node's own modules only.
// Checks Node, installs when the lock changed, builds when the source changed, then runs the thing.
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const lockMark = join(root, 'node_modules', '.leasehold-lock');
const buildMark = join(root, 'dist', '.leasehold-source');
const [command = 'start', ...rest] = process.argv.slice(2);
// Installing and building take a while: whether npm was stopped meanwhile is seen by its pid.
const launcher = process.ppid;

checkNode();
await prepare().catch(explain);
switch (command) {
  case 'start':
    process.env.LEASEHOLD_LAUNCHER_PID = String(launcher);
    await become(join(root, 'dist', 'main.js'), rest);
    break;
  case 'test':
    await become(join(root, 'node_modules', 'vitest', 'vitest.mjs'), ['run', ...rest]);
    break;
  case 'test-on':
    await testOn(rest);
    break;
  case 'build':
  case 'install':
    break;
  default:
    fail(`bootstrap does not know "${command}"; it knows start, test, test-on, build and install`);
}

async function prepare() {
  const builds = command === 'start' || command === 'build';
  if (isInstalledAsMarked() && !(builds && isStale())) return;
  await alone(async () => {
    await installWhenChanged();
    if (builds) await buildWhenStale();
  });
}

/** The tests against a Postgres of yours instead of the embedded one. */
async function testOn([url = process.env.TEST_DATABASE_URL, ...args]) {
  if (!url?.startsWith('postgres')) fail('say which Postgres: npm run test:postgres -- postgres://user@host/database');
  process.env.TEST_DATABASE_URL = url;
  await become(join(root, 'node_modules', 'vitest', 'vitest.mjs'), ['run', ...args]);
}

function checkNode() {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  if (major > 20 || (major === 20 && minor >= 19)) return;
  fail(
    `Leasehold needs Node 20.19 or newer. This is Node ${process.versions.node}. Get a newer one at https://nodejs.org`,
  );
}

function lockHash() {
  return hashOf([join(root, 'package-lock.json')]);
}

function isInstalledAsMarked() {
  return readOr(lockMark) === lockHash();
}

async function installWhenChanged() {
  const hash = lockHash();
  if (readOr(lockMark) === hash) return;
  if (isInstalled()) return writeFileSync(lockMark, hash);
  console.log(existsSync(join(root, 'node_modules')) ? 'Dependencies changed: installing' : 'Installing dependencies');
  // npm's own file, when npm started us; else the npm on the path, which is a script on Windows.
  const npm = process.env.npm_execpath;
  const args = ['ci', '--include=dev', '--no-audit', '--no-fund', '--loglevel=error'];
  const code = npm?.endsWith('.js')
    ? await run(process.execPath, [npm, ...args])
    : await run('npm', args, process.platform === 'win32');
  if (code !== 0) fail('npm ci failed; its reason is above');
  writeFileSync(lockMark, hash);
}

/** Whether node_modules is already what the lock says, because somebody ran npm ci themselves. */
function isInstalled() {
  const found = readOr(join(root, 'node_modules', '.package-lock.json'));
  if (!found) return false;
  const installed = JSON.parse(found).packages;
  const wanted = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')).packages;
  return Object.entries(wanted).every(([path, { version, optional, peer }]) => {
    if (path === '') return true;
    // What is optional may belong to another platform.
    return path in installed ? installed[path].version === version : Boolean(optional || peer);
  });
}

function sourceHash() {
  const source = [...filesBelow(join(root, 'server')), join(root, 'tsconfig.json'), join(root, 'tsconfig.build.json')];
  return hashOf([...source, join(root, 'package-lock.json')]);
}

function isStale() {
  return readOr(buildMark) !== sourceHash();
}

async function buildWhenStale() {
  if (!isStale()) return;
  const hash = sourceHash();
  console.log('Building');
  const dist = join(root, 'dist');
  // As deep as dist: its source maps name the sources by relative paths.
  const fresh = join(root, '.leasehold-build');
  rmSync(fresh, { recursive: true, force: true });
  const tsc = join(root, 'node_modules', 'typescript', 'bin', 'tsc');
  const vite = join(root, 'node_modules', 'vite', 'bin', 'vite.js');
  const page = ['build', '-c', join(root, 'server', 'dashboard', 'vite.config.ts'), '--emptyOutDir'];
  const codes = await Promise.all([
    run(process.execPath, [tsc, '-p', join(root, 'tsconfig.build.json'), '--outDir', fresh]),
    run(process.execPath, [vite, ...page, '--outDir', join(fresh, 'dashboard')]),
  ]);
  if (codes.some((code) => code !== 0)) fail('the build failed; its errors are above');
  writeFileSync(join(fresh, basename(buildMark)), hash);
  // Swapped in at once: a build cut short is never run, and a daemon that runs keeps finding its files.
  rmSync(`${fresh}-old`, { recursive: true, force: true });
  if (existsSync(dist)) renameSync(dist, `${fresh}-old`);
  renameSync(fresh, dist);
  rmSync(`${fresh}-old`, { recursive: true, force: true });
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

/** Goes on as another program in this very process: no signal to pass on, no child to leave behind. */
async function become(file, args) {
  process.chdir(root);
  process.argv.splice(1, process.argv.length, file, ...args);
  process.setSourceMapsEnabled(true);
  await import(pathToFileURL(file).href);
}

async function run(program, args, shell = false) {
  const [code] = await ended(spawn(program, args, { cwd: root, stdio: 'inherit', shell }));
  return code;
}

function ended(child) {
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) => resolve([code, signal]));
  });
}

function filesBelow(directory) {
  return readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath ?? entry.path, entry.name))
    .sort();
}

function hashOf(files) {
  const hash = createHash('sha256');
  for (const file of files)
    hash
      .update(`${file.slice(root.length)}\n`)
      .update(readFileSync(file))
      .update('\n');
  return hash.digest('hex');
}

function readOr(file) {
  return existsSync(file) ? readFileSync(file, 'utf8') : undefined;
}

/** What a person can mend, without a stack. */
function explain(error) {
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
