import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer as createHttpServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import express from 'express';
import { expect, it, onTestFinished } from 'vitest';
import { dashboardPages } from '../../../server/http/dashboard.ts';

async function built(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-pages-'));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  await mkdir(join(directory, 'assets'));
  await writeFile(join(directory, 'index.html'), '<html><head><title>L</title></head></html>');
  await writeFile(join(directory, 'assets', 'index-1a2b.js'), 'export {};');
  return directory;
}

async function serve(app: express.Express): Promise<string> {
  const server = createHttpServer(app);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => void server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

it('is served under any prefix, with the prefix as its base', async () => {
  const directory = await built();
  const app = express();
  app.use(...dashboardPages(directory));
  app.use('/ops/jobs', ...dashboardPages(directory, { readOnly: true }));
  app.use('/of/:team', ...dashboardPages(directory));
  const url = await serve(app);
  const page = async (path: string) => (await fetch(url + path)).text();
  expect(await page('/')).toContain('<base href="/" />');
  expect(await page('/jobs/1')).not.toContain('leasehold-read-only');
  expect(await page('/ops/jobs')).toContain('<base href="/ops/jobs/" />');
  expect(await page('/ops/jobs/targets/a%2Fb')).toContain('<meta name="leasehold-read-only" content="true" />');
  expect(await page('/of/red')).toContain('<base href="/of/red/" />');
  expect(await page('/of/$&"><script>')).not.toContain('<script>');
  const asset = await fetch(`${url}/ops/jobs/assets/index-1a2b.js`);
  expect(asset.headers.get('cache-control')).toContain('immutable');
  const answer = await fetch(`${url}/ops/jobs/settings`);
  expect(answer.headers.get('content-security-policy')).toContain("default-src 'none'");
  expect((await fetch(`${url}/ops/jobs/elsewhere`)).status).toBe(404);
});

it('is not served if it was not built', () => {
  expect(dashboardPages(undefined)).toEqual([]);
  expect(dashboardPages('/nowhere')).toEqual([]);
});
