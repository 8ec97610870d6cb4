// The API of jobs and targets on a free port, with a tenant, a key and a registry of a few job types.

import { beforeAll } from 'vitest';
import { z } from 'zod';
import { controlRoutes } from '../../../server/daemon/create-api.ts';
import type { RouteGroup } from '../../../server/http/route.ts';
import { CommitSignals } from '../../../server/jobs/commit-signals.ts';
import { type Enqueuer, enqueue } from '../../../server/jobs/enqueue/enqueue.ts';
import { QueueLimit } from '../../../server/jobs/enqueue/enqueue-limits.ts';
import { defineJob } from '../../../server/worker/handlers/define-job.ts';
import { HandlerRegistry } from '../../../server/worker/handlers/handler-registry.ts';
import { type TenantContext, useTenant } from '../postgres/database.ts';
import { type Answer, type RequestOptions, type TestApp, useApp } from './app.ts';

export const jobTypes = new HandlerRegistry([
  defineJob({ type: 'demo.echo', run: () => null }),
  defineJob({
    type: 'demo.strict',
    payload: z.object({ amount: z.number() }),
    retry: { attempts: 4, kind: 'fixed', delaySeconds: 7, on: ['BUSY'] },
    timeoutSeconds: 30,
    onError: 'continue',
    run: () => null,
  }),
  defineJob({
    type: 'demo.phased',
    phases: [
      { name: 'load', run: () => 1 },
      { name: 'store', run: () => 2 },
    ],
  }),
]);

export interface Control extends TenantContext {
  app: TestApp;
  key: string;
  get(path: string): Promise<Answer>;
  post(path: string, body?: unknown, headers?: Record<string, string>): Promise<Answer>;
  send(method: string, path: string, options?: RequestOptions): Promise<Answer>;
}

export function useControl(more: (context: TenantContext) => RouteGroup[] = () => []): Control {
  const context = useTenant();
  const app = useApp(context, ({ db, config }) => {
    const enqueuer: Enqueuer = { enqueue: ({ schema }, jobs, actor) => enqueue(db, schema, jobs, actor) };
    const deps = { config, jobTypes, enqueuer, queueLimit: new QueueLimit(db), signals: new CommitSignals() };
    return { routes: [...controlRoutes(deps), ...more(context)] };
  });
  const control = {} as Control;
  beforeAll(async () => {
    const key = await app.keyFor(context.tenant.id);
    const send = (method: string, path: string, options: RequestOptions = {}) =>
      app.request(method, path, { key, ...options });
    Object.assign(control, context, { app, key, send });
    control.get = (path) => send('GET', path);
    control.post = (path, body, headers) =>
      send('POST', path, { ...(body !== undefined && { body }), ...(headers && { headers }) });
  });
  return control;
}
