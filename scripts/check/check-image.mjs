// `npm run image:check`: runs the steps of the Dockerfile in directories instead of containers, then starts what the image
// would start, as its user, and stops it as a container is stopped. Needs no Docker; where there is one, prefer docker build.
import { spawn, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const base = mkdtempSync(join(tmpdir(), 'leasehold-image-'));
process.once('exit', () => rmSync(base, { recursive: true, force: true }));

const context = buildContext();
const image = buildStages(readDockerfile());
await runImage(image);
console.log('the steps of the Dockerfile work: it builds, starts without a shell, is healthy, and drains on SIGTERM');

/** One instruction per line: this Dockerfile needs no continuation lines, and a new one fails here. */
function readDockerfile() {
  return readFileSync(join(root, 'Dockerfile'), 'utf8')
    .split('\n')
    .filter((line) => line.trim() !== '' && !line.startsWith('#'))
    .map((line) => {
      const [, name, text] = /^([A-Z]+)\s+(.*)$/.exec(line) ?? fail(`cannot read the line: ${line}`);
      return { name, text };
    });
}

/** What .dockerignore leaves: it ignores everything and names what is kept. */
function buildContext() {
  const lines = readFileSync(join(root, '.dockerignore'), 'utf8').split('\n').filter(Boolean);
  if (lines[0] !== '*') fail('.dockerignore must begin with *');
  const kept = lines.slice(1).map((line) => (line.startsWith('!') ? line.slice(1) : fail(`not understood: ${line}`)));
  const directory = join(base, 'context');
  const { stdout } = spawnSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', ...kept], {
    cwd: root,
  });
  for (const file of stdout.toString().split('\n').filter(Boolean)) {
    if (existsSync(join(root, file))) cpSync(join(root, file), join(directory, file));
  }
  return directory;
}

function buildStages(instructions) {
  const stages = new Map();
  let stage;
  for (const { name, text } of instructions) {
    if (name === 'FROM') {
      const [, , label = 'final'] = /^(\S+)(?: AS (\S+))?$/.exec(text) ?? fail(`FROM ${text}`);
      stage = { directory: join(base, label), workdir: '/', env: {}, user: 'root' };
      stages.set(label, stage);
      mkdirSync(stage.directory, { recursive: true });
    } else if (name === 'WORKDIR') stage.workdir = text;
    else if (name === 'ENV') stage.env[text.slice(0, text.indexOf('='))] = text.slice(text.indexOf('=') + 1);
    else if (name === 'COPY') copy(stages, stage, text);
    else if (name === 'RUN') step(stage, text);
    else if (name === 'USER') stage.user = text;
    else if (name === 'ENTRYPOINT') stage.entrypoint = JSON.parse(text);
    else if (name === 'HEALTHCHECK') stage.health = JSON.parse(text.slice(text.indexOf('CMD ') + 4));
    else if (name === 'STOPSIGNAL') stage.stopSignal = text;
    else if (name !== 'EXPOSE') fail(`an instruction that this check does not know: ${name}`);
  }
  return stages.get('final') ?? fail('the last stage has a name');
}

function copy(stages, stage, text) {
  const [, from, files] = /^(?:--from=(\S+) )?(.+)$/.exec(text);
  const paths = files.split(' ');
  const to = paths.pop();
  for (const path of paths) {
    const source = from ? join(stages.get(from).directory, path) : join(context, path);
    if (!existsSync(source)) fail(`COPY ${text}: ${path} is not there`);
    const target = join(inStage(stage, stage.workdir), to.endsWith('/') ? join(to, path) : to);
    cpSync(source, target, { recursive: true, verbatimSymlinks: true });
  }
}

function step(stage, command) {
  console.log(`RUN ${command}`);
  const { status } = spawnSync('sh', ['-c', command], {
    cwd: inStage(stage, stage.workdir),
    env: { PATH: process.env.PATH, HOME: process.env.HOME, ...stage.env },
    stdio: 'inherit',
  });
  if (status !== 0) fail(`RUN ${command} ended with ${status}`);
}

async function runImage({ directory, workdir, env, user, entrypoint, health, stopSignal }) {
  if (user === 'root') fail('the image runs as root');
  if (!Array.isArray(entrypoint) || /sh$/.test(entrypoint[0])) fail('a shell stands between SIGTERM and the daemon');
  const cwd = inStage({ directory }, workdir);
  const port = String(await freePort());
  // Without DATABASE_URL the daemon brings a Postgres of its own, which needs a place to write.
  const data = join(base, 'data');
  const started = spawn(entrypoint[0], entrypoint.slice(1), {
    cwd,
    env: { PATH: process.env.PATH, ...env, PORT: port, DATA_DIR: data, SHUTDOWN_GRACE_PERIOD_SECONDS: '5' },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [started.stdout, started.stderr]) stream.on('data', (chunk) => (output += chunk));
  const exited = new Promise((resolve) => started.once('exit', (code, signal) => resolve({ code, signal })));
  process.once('exit', () => started.kill('SIGKILL'));
  const isHealthy = () =>
    spawnSync(health[0], health.slice(1), { cwd, env: { PATH: process.env.PATH, ...env, PORT: port } }).status === 0;
  for (const deadline = Date.now() + 180_000; !isHealthy(); await delay(500)) {
    if (started.exitCode !== null || Date.now() > deadline) fail(`the health check never passed:\n${output}`);
  }
  started.kill(stopSignal);
  const { code, signal } = await exited;
  if (code !== 0) fail(`${stopSignal} ended the daemon with ${code ?? signal}:\n${output}`);
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

function inStage({ directory }, path) {
  const place = join(directory, path);
  mkdirSync(place, { recursive: true });
  return place;
}

function fail(reason) {
  console.error(`Dockerfile: ${reason}`);
  process.exit(1);
}
