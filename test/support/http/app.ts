// The HTTP app on a free port with a real database, used from outside with fetch.
// `const app = useApp(context)`, then `await app.request('POST', '/api/…', { key, body })`.

import { Registry } from 'prom-client';
import { afterAll, beforeAll } from 'vitest';
import { type AppDependencies, createApp } from '../../../server/http/app.ts';
import { HttpServer } from '../../../server/http/server.ts';
import { type Config, loadConfig } from '../../../server/kernel/config.ts';
import { createLogger } from '../../../server/kernel/logger.ts';
import { type Scope, scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { KeyVerifier } from '../../../server/tenants/api-keys/verifier.ts';
import { TenantRegistry } from '../../../server/tenants/registry.ts';
import type { DatabaseContext } from '../postgres/database.ts';

export const adminKey = 'test-admin-key-0123456789-0123456789';

export interface Answer {
  status: number;
  headers: Headers;
  // biome-ignore lint/suspicious/noExplicitAny: tests read answers as a client without types would.
  body: any;
}

export interface RequestOptions {
  key?: string | undefined;
  /** Sent as JSON; text is sent as it is. */
  body?: unknown;
  headers?: Record<string, string>;
}

export interface TestApp {
  url: string;
  config: Config;
  deps: AppDependencies;
  server: HttpServer;
  request(method: string, path: string, options?: RequestOptions): Promise<Answer>;
  /** A key of the tenant, with all scopes unless some are named. */
  keyFor(tenantId: string, only?: readonly Scope[]): Promise<string>;
}

/** Settles the pieces that the app needs; `extend` adds or replaces dependencies (routes, readiness…). */
export function useApp(
  database: DatabaseContext,
  extend: (deps: AppDependencies) => Partial<AppDependencies> = () => ({}),
): TestApp {
  const app = {} as TestApp;
  let stop: () => Promise<void> = async () => {};
  beforeAll(async () => {
    const started = await startApp(database, extend);
    stop = started.stop;
    Object.assign(app, started.app);
  });
  afterAll(() => stop());
  return app;
}

export async function startApp(
  { db }: Pick<DatabaseContext, 'db'>,
  extend: (deps: AppDependencies) => Partial<AppDependencies> = () => ({}),
): Promise<{ app: TestApp; stop(): Promise<void> }> {
  const config = loadConfig({ ADMIN_API_KEY: adminKey, PORT: '0' });
  const logger = createLogger('silent');
  const registry = new TenantRegistry(db, logger);
  const keys = new KeyVerifier(db, config, logger);
  const readiness = () => ({ migrated: true, draining: false });
  const base: AppDependencies = { config, db, logger, registry, keys, metricsRegistry: new Registry(), readiness };
  const deps = { ...base, ...extend(base) };
  await registry.start();
  await keys.start();
  const server = new HttpServer(() => createApp(deps), { host: '127.0.0.1', port: 0, stopGraceMs: 2000 }, logger);
  await server.start();
  const url = server.url;
  const app: TestApp = {
    url,
    config,
    deps,
    server,
    request: (method, path, options) => send(url, method, path, options),
    keyFor: async (tenantId, only = scopes) => (await createApiKey(db, { tenantId, name: 'test', scopes: only })).text,
  };
  return {
    app,
    stop: async () => {
      await server.stop();
      await keys.stop();
      await registry.stop();
    },
  };
}

async function send(url: string, method: string, path: string, options: RequestOptions = {}): Promise<Answer> {
  const headers: Record<string, string> = { ...options.headers };
  if (options.key !== undefined) headers.authorization = `Bearer ${options.key}`;
  const init: RequestInit = { method, headers };
  if (options.body !== undefined) {
    headers['content-type'] ??= 'application/json';
    init.body = typeof options.body === 'string' ? options.body : JSON.stringify(options.body);
  }
  const response = await fetch(url + path, init);
  const text = await response.text();
  const isJson = /json/.test(response.headers.get('content-type') ?? '');
  return { status: response.status, headers: response.headers, body: isJson && text ? JSON.parse(text) : text };
}
