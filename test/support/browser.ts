// A real Chromium in front of a real daemon. The browser comes from CHROMIUM_PATH or from the npm package; where
// neither starts, the browser tests are skipped and the run says so.
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import packagedChromium from '@sparticuz/chromium';
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, onTestFinished } from 'vitest';
import type { Daemon } from '../../server/daemon/daemon.ts';
import { packageRoot } from '../../server/kernel/environment.ts';
import { type Scope, scopes } from '../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../server/tenants/api-keys/key-store.ts';
import { type StartDaemon, startDaemon } from './daemon/daemon.ts';
import { type TenantContext, useTenant } from './postgres/database.ts';

export interface BrowserTest extends TenantContext {
  browser: Browser;
  dashboardDir: string;
}

const problem = await findProblem();

/** `describe`, skipped where Chromium does not start. */
export const describeInBrowser = problem === undefined ? describe : describe.skip;
if (problem !== undefined) console.warn(`Browser tests are skipped: Chromium does not start here (${problem}).`);

/** One browser, one built page and one database for a file of tests. */
export function useBrowser(): BrowserTest {
  const context = useTenant() as BrowserTest;
  if (problem !== undefined) return context;
  beforeAll(async () => {
    context.dashboardDir = await mkdtemp(join(tmpdir(), 'leasehold-dashboard-'));
    const args = ['scripts/build/build.mjs', 'dashboard', context.dashboardDir];
    await promisify(execFile)(process.execPath, args, { cwd: packageRoot() });
    context.browser = await launch();
  });
  afterAll(async () => {
    await context.browser?.close();
    if (context.dashboardDir !== undefined) await rm(context.dashboardDir, { recursive: true, force: true });
  });
  return context;
}

async function findProblem(): Promise<string | undefined> {
  try {
    await (await launch()).close();
    return undefined;
  } catch (error) {
    return (error as Error).message.split('\n')[0];
  }
}

async function launch(): Promise<Browser> {
  const executablePath = process.env.CHROMIUM_PATH || (await packagedChromium.executablePath());
  // Containers run tests as root, without the kernel's sandbox and with a small /dev/shm.
  return chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
}

export interface Dashboard {
  daemon: Daemon;
  page: Page;
  browserContext: BrowserContext;
  /** With all scopes. */
  key: string;
  /** Errors of the browser, which must stay empty. */
  complaints: string[];
  api(method: string, path: string, body?: unknown): Promise<Record<string, unknown>>;
  goTo(path: string): Promise<void>;
}

export interface OpenOptions extends Pick<StartDaemon, 'env' | 'handlers'> {
  daemon?: Daemon;
  scopes?: readonly Scope[];
  signIn?: boolean;
  width?: number;
}

/** A daemon and a page that is signed in to it. Violations of the policy and errors of the page fail the test. */
export async function openDashboard(test: BrowserTest, options: OpenOptions = {}): Promise<Dashboard> {
  const { dashboardDir, db, tenant } = test;
  const { env, handlers } = options;
  const daemon =
    options.daemon ?? (await startDaemon(test, { dashboardDir, ...(env && { env }), ...(handlers && { handlers }) }));
  const { text: key } = await createApiKey(db, { tenantId: tenant.id, name: 'test', scopes: [...scopes] });
  const { text: pageKey } = await createApiKey(db, {
    tenantId: tenant.id,
    name: 'dashboard',
    scopes: options.scopes ?? scopes,
  });
  // Kept: a daemon that was stopped has no address any more.
  const { url } = daemon;
  const browserContext = await test.browser.newContext({
    locale: 'en-US',
    viewport: { width: options.width ?? 1280, height: 900 },
    colorScheme: 'light',
  });
  // A machine that is busy with other work must not reach it.
  browserContext.setDefaultTimeout(60_000);
  const page = await browserContext.newPage();
  const complaints: string[] = [];
  page.on('pageerror', (error) => complaints.push(`error: ${error.message}`));
  page.on('dialog', (dialog) => {
    complaints.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on('console', (message) => {
    if (/Content Security Policy|Refused to/.test(message.text())) complaints.push(message.text());
  });
  page.on('request', (request) => {
    const { origin } = new URL(request.url());
    if (origin !== new URL(url).origin && !request.url().startsWith('data:')) {
      complaints.push(`request to ${request.url()}`);
    }
  });
  onTestFinished(async () => {
    await browserContext.close();
    expect(complaints).toEqual([]);
  });
  const goTo = async (path: string) => {
    await page.goto(url + path);
  };
  await goTo('/');
  if (options.signIn !== false) await signIn(page, pageKey);
  const api = async (method: string, path: string, body?: unknown) => {
    const response = await fetch(url + path, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text === '' ? {} : (JSON.parse(text) as Record<string, unknown>);
  };
  return { daemon, page, browserContext, key, complaints, api, goTo };
}

export async function signIn(page: Page, key: string): Promise<void> {
  await page.getByLabel('API key').fill(key);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.locator('.shell').waitFor();
}
