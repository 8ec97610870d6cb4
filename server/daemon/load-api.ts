// Loads the modules of the HTTP API with the first request. The order is chosen so that each module adds little to
// those before it, with a turn of the event loop after each: loading them at once would stop heartbeats, claims and
// outcomes for up to 100 ms. create-api.ts imports the same modules and finds them loaded.
import { createRequire } from 'node:module';
import { ownTurn } from '../kernel/clock.ts';

// Express is a CommonJS package that loads all its dependencies at once. These are its largest ones, by the package
// that depends on them.
const packages: readonly (readonly [string, readonly string[]])[] = [
  ['qs', ['side-channel']],
  ['express', ['debug', 'mime-types', 'qs', 'http-errors']],
  ['body-parser', ['iconv-lite', 'raw-body']],
  ['express', ['body-parser', 'router', 'accepts', 'send', 'serve-static', 'finalhandler', 'proxy-addr']],
];

const modules: readonly (() => Promise<unknown>)[] = [
  () => import('express'),
  () => import('helmet'),
  () => import('express-rate-limit'),
  () => import('../http/request/input.ts'),
  () => import('../http/request/body.ts'),
  () => import('../http/request/request-log.ts'),
  () => import('../http/mount.ts'),
  () => import('../http/resources/tenants.ts'),
  () => import('../http/resources/session.ts'),
  () => import('../http/app.ts'),
  () => import('../http/resources/jobs/create-jobs.ts'),
  () => import('../http/resources/jobs/jobs.ts'),
  () => import('../http/resources/jobs/targets.ts'),
  () => import('../http/resources/jobs/operations.ts'),
  () => import('../http/resources/jobs/why.ts'),
  () => import('../http/resources/jobs/graph.ts'),
  () => import('../http/resources/jobs/lanes.ts'),
  () => import('../http/resources/events.ts'),
  () => import('../http/resources/scheduler/scheduler-schemas.ts'),
  () => import('../http/resources/scheduler/scheduler-jobs.ts'),
  () => import('../http/resources/scheduler/scheduler-leases.ts'),
  () => import('../http/resources/scheduler/scheduler-stats.ts'),
  () => import('../http/resources/schedules.ts'),
  () => import('../http/resources/questions.ts'),
  () => import('../http/resources/question-links.ts'),
  () => import('../http/resources/attention.ts'),
  () => import('../http/resources/stats.ts'),
  () => import('../http/resources/limits.ts'),
  () => import('../http/resources/budgets.ts'),
  () => import('../http/resources/webhooks.ts'),
  () => import('../http/question-form/question-pages.ts'),
  () => import('../http/dashboard.ts'),
];

export async function loadApi(): Promise<typeof import('./create-api.ts')> {
  const require = createRequire(import.meta.url);
  for (const [owner, names] of packages) {
    for (const name of names) {
      await ownTurn();
      loadPackage(require, owner, name);
    }
  }
  for (const load of modules) {
    await ownTurn();
    await load();
  }
  await ownTurn();
  return import('./create-api.ts');
}

function loadPackage(require: NodeJS.Require, owner: string, name: string): void {
  try {
    const from = owner === 'express' ? require : createRequire(require.resolve('express'));
    createRequire(from.resolve(owner))(name);
  } catch {
    // Another version of Express may have other dependencies, and then loads them itself.
  }
}
