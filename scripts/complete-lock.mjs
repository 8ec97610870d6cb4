// `npm run lock:complete`: a lock written where the registry lacks other platforms' packages leaves
// them out, and then `npm ci` refuses it everywhere. Adds what is missing; --check only says so.
import { readFileSync, writeFileSync } from 'node:fs';

const systems = ['aix', 'android', 'darwin', 'freebsd', 'linux', 'netbsd', 'openbsd', 'openharmony', 'sunos', 'win32'];
const processors = ['arm64', 'arm', 'ia32', 'loong64', 'mips64el', 'ppc64', 'riscv64', 's390x', 'wasm32', 'x64'];

const file = new URL('../package-lock.json', import.meta.url);
const lock = JSON.parse(readFileSync(file, 'utf8'));
const missing = missingPackages(lock.packages);
if (missing.length === 0) {
  console.log('the lock is complete');
} else if (process.argv.includes('--check')) {
  console.error(`package-lock.json lacks ${missing.map(([path]) => path).join(', ')}; run npm run lock:complete`);
  process.exitCode = 1;
} else {
  const all = Object.entries({ ...lock.packages, ...Object.fromEntries(missing) });
  all.sort(([a], [b]) => a.localeCompare(b, 'en'));
  writeFileSync(file, `${JSON.stringify({ ...lock, packages: Object.fromEntries(all) }, null, 2)}\n`);
  console.log(`added ${missing.length} packages to the lock`);
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
