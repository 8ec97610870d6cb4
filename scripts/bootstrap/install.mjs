// Installs what a command needs, when the lock changed: only the packages that the daemon runs with (`runtime`), or those
// of the developers too (`all`). Node's own modules only: nothing is installed yet.
import { spawn } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { hashOf, readOr, root, UserError } from './files.mjs';
import { withProgress } from './progress.mjs';

const lockFile = join(root, 'package-lock.json');
const mark = join(root, 'node_modules', '.leasehold-lock');

export function isInstalledAsMarked(scope) {
  return markedScopes().includes(scope);
}

export async function installWhenChanged(scope) {
  if (isInstalledAsMarked(scope)) return;
  // Somebody may have run npm ci themselves.
  if (isInstalled('all')) return writeMark('all');
  if (isInstalled(scope)) return writeMark(scope);
  const added = markedScopes().includes('runtime');
  const wanted = wantedPackages(scope);
  const title = `Installing ${added ? 'the packages of developers' : `${wanted.length} package${wanted.length === 1 ? '' : 's'}`}`;
  const progress = () => `${wanted.filter((path) => existsSync(join(root, path, 'package.json'))).length}`;
  // npm ci would remove the packages under a daemon that runs.
  const command = added
    ? ['install', '--no-save', '--include=dev']
    : ['ci', scope === 'all' ? '--include=dev' : '--omit=dev'];
  const { code, output } = await withProgress(title, () => npm(command), progress);
  if (code !== 0) throw new UserError(`${output.trim()}\nnpm ${command[0]} failed; its reason is above`);
  writeMark(scope);
}

/** The scopes that were installed from this very lock. */
function markedScopes() {
  const [hash, scope] = readOr(mark)?.split(' ') ?? [];
  if (hash !== lockHash()) return [];
  return scope === 'runtime' ? ['runtime'] : ['runtime', 'all'];
}

function writeMark(scope) {
  writeFileSync(mark, `${lockHash()} ${scope}`);
}

function lockHash() {
  return hashOf([lockFile]);
}

/** Whether node_modules is what the lock says. */
function isInstalled(scope) {
  const found = readOr(join(root, 'node_modules', '.package-lock.json'));
  if (!found) return false;
  const installed = JSON.parse(found).packages;
  return lockedPackages(scope).every(([path, { version, optional, peer }]) => {
    // What is optional may belong to another platform.
    return path in installed ? installed[path].version === version : Boolean(optional || peer);
  });
}

/** Of the registry: the project itself, the dashboard with its own package.json and the link to it are left out. */
function lockedPackages(scope) {
  const { packages } = JSON.parse(readFileSync(lockFile, 'utf8'));
  const isWanted = ({ link, dev, devOptional }) => !link && (scope === 'all' || !(dev || devOptional));
  return Object.entries(packages).filter(([path, entry]) => path.startsWith('node_modules/') && isWanted(entry));
}

/** Those that npm will install here: packages of other platforms are left out. */
function wantedPackages(scope) {
  const fits = (allowed, here) => allowed === undefined || allowed.includes(here);
  return lockedPackages(scope)
    .filter(([, { os, cpu }]) => fits(os, process.platform) && fits(cpu, process.arch))
    .map(([path]) => path);
}

/** npm's own file, when npm started us; else the npm on the path, which is a script on Windows. */
async function npm(command) {
  const args = [...command, '--no-audit', '--no-fund', '--loglevel=error'];
  const file = process.env.npm_execpath;
  // `npm pack --dry-run` passes its options on to the npm that it starts.
  const { npm_config_dry_run: _, ...env } = process.env;
  const options = { cwd: root, env, stdio: ['ignore', 'pipe', 'pipe'] };
  const child = file?.endsWith('.js')
    ? spawn(process.execPath, [file, ...args], options)
    : spawn('npm', args, { ...options, shell: process.platform === 'win32' });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk));
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => resolve({ code, output }));
  });
}
