// `npm run lock:complete`: a lock written where the registry lacks other platforms' packages leaves
// them out, and then `npm ci` refuses it everywhere; an entry without a hash takes whatever the registry sends.
// Adds what is missing; --check only says so. Another lock's path may be given.
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';

const systems = ['aix', 'android', 'darwin', 'freebsd', 'linux', 'netbsd', 'openbsd', 'openharmony', 'sunos', 'win32'];
const processors = ['arm64', 'arm', 'ia32', 'loong64', 'mips64el', 'ppc64', 'riscv64', 's390x', 'wasm32', 'x64'];

const given = process.argv.slice(2).find((argument) => !argument.startsWith('--'));
const file = given ?? new URL('../../package-lock.json', import.meta.url);
const lock = JSON.parse(readFileSync(file, 'utf8'));
const missing = missingPackages(lock.packages);
if (process.argv.includes('--check')) check();
else complete();

function check() {
  const errors = [
    ...missing.map(([path]) => `${path} is missing`),
    ...unhashedPackages(lock.packages).map(([path]) => `${path} has no integrity hash`),
  ];
  for (const error of errors) console.error(`package-lock.json: ${error}; run npm run lock:complete`);
  if (errors.length > 0) process.exitCode = 1;
  else console.log('the lock is complete: it has every package of every platform with its integrity hash');
}

function complete() {
  const packages = { ...lock.packages, ...Object.fromEntries(missing) };
  let hashed = 0;
  for (const [path, entry] of unhashedPackages(packages)) {
    const integrity = hashOf(path.slice(path.lastIndexOf('node_modules/') + 'node_modules/'.length), entry.version);
    if (integrity === undefined) continue;
    packages[path] = { ...entry, integrity };
    hashed += 1;
  }
  const all = Object.entries(packages).sort(([a], [b]) => a.localeCompare(b, 'en'));
  writeFileSync(file, `${JSON.stringify({ ...lock, packages: Object.fromEntries(all) }, null, 2)}\n`);
  console.log(`added ${missing.length} packages and ${hashed} integrity hashes to the lock`);
  for (const [path, { version }] of unhashedPackages(packages))
    console.error(`the registry has no ${path} ${version}: pin its parent to a version that it has for all platforms`);
}

/** Without a hash npm installs whatever the registry answers with. */
function unhashedPackages(packages) {
  return Object.entries(packages).filter(
    ([path, entry]) => path.startsWith('node_modules/') && !entry.link && !entry.integrity,
  );
}

function hashOf(name, version) {
  try {
    const output = execFileSync('npm', ['view', `${name}@${version}`, 'dist.integrity'], {
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    return /^sha512-\S+$/m.exec(output.toString())?.[0];
  } catch {
    return undefined;
  }
}

function missingPackages(packages) {
  return Object.entries(packages).flatMap(([path, entry]) =>
    Object.entries(entry.optionalDependencies ?? {})
      .filter(([name]) => !isLocked(packages, path, name) && platformOf(name) !== undefined)
      .map(([name, version]) => [
        `node_modules/${name}`,
        { version, ...(entry.dev ? { dev: true } : {}), optional: true, ...platformOf(name) },
      ]),
  );
}

// As Node resolves: in the package's own node_modules, then in those above it.
function isLocked(packages, path, name) {
  for (let from = path; ; from = from.slice(0, Math.max(0, from.lastIndexOf('/node_modules/')))) {
    if (`${from === '' ? '' : `${from}/`}node_modules/${name}` in packages) return true;
    if (from === '' || !from.includes('node_modules/')) return false;
  }
}

/** What npm needs to know in order to skip a package elsewhere; such packages say it in their names. */
function platformOf(name) {
  const words = (name.split('/').at(-1) ?? '').split('-');
  const cpu = processors.find((processor) => words.includes(processor));
  const os = systems.find((system) => words.includes(system));
  const libc = words.some((word) => word.startsWith('musl')) ? 'musl' : undefined;
  if (cpu === undefined) return undefined;
  return { cpu: [cpu], ...(os ? { os: [os] } : {}), ...(libc ? { libc: [libc] } : {}) };
}
