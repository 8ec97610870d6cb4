// Starts a worker thread with a module of this package: JavaScript from dist, or TypeScript from source with the loader
// that handlers use.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { Worker, type WorkerOptions } from 'node:worker_threads';

/** `module` is the URL of the module without its extension, e.g. `new URL('./heartbeat-thread', import.meta.url)`. */
export function startThread(module: URL, options: WorkerOptions = {}): Worker {
  if (!import.meta.url.endsWith('.ts')) return new Worker(new URL(`${module.href}.js`), options);
  const loader = createRequire(import.meta.url)
    .resolve('tsx/esm/api')
    .replace(/cjs$/, 'mjs');
  const code = `import('${pathToFileURL(loader).href}').then(({ tsImport }) => tsImport('${module.href}.ts', '${import.meta.url}'));`;
  return new Worker(code, { ...options, eval: true });
}
