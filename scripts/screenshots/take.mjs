// `npm run screenshots`: starts a daemon on data of its own, fills the tenant `demo` with machines that run, wait, fail
// and are held, and takes the pictures of the README and docs/dashboard.md, light and dark.
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import packagedChromium from '@sparticuz/chromium';
import { chromium } from 'playwright-core';
import { fillDemo } from './demo-data.mjs';

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const images = join(root, 'docs', 'images');
const data = mkdtempSync(join(tmpdir(), 'leasehold-screenshots-'));
mkdirSync(images, { recursive: true });

const daemon = spawn(process.execPath, [join(root, 'dist', 'main.js')], {
  cwd: data,
  env: {
    ...process.env,
    PORT: '0',
    DATA_DIR: join(data, 'data'),
    DATABASE_URL: '',
    LOG_LEVEL: 'silent',
    SHUTDOWN_GRACE_PERIOD_SECONDS: '1',
  },
  stdio: ['ignore', 'pipe', 'inherit'],
});
try {
  const { url, key } = await readBanner();
  const { running } = await fillDemo(url, key);
  await takeAll(url, key, [
    ['overview', '/'],
    ['targets', '/targets'],
    ['job', `/jobs/${running}`],
  ]);
} finally {
  const exited = new Promise((resolve) => daemon.once('exit', resolve));
  daemon.kill('SIGTERM');
  await exited;
  rmSync(data, { recursive: true, force: true });
}

function readBanner() {
  return new Promise((resolve, reject) => {
    let text = '';
    daemon.stdout.on('data', (chunk) => {
      text += chunk;
      const url = /running at (\S+)/.exec(text)?.[1];
      const key = /Key of tenant "demo": (\S+)/.exec(text)?.[1];
      if (url && key) resolve({ url, key });
    });
    daemon.once('exit', (code) => reject(new Error(`the daemon ended with ${code}`)));
  });
}

async function takeAll(url, key, pages) {
  const executablePath = process.env.CHROMIUM_PATH || (await packagedChromium.executablePath());
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-dev-shm-usage'] });
  for (const colorScheme of ['light', 'dark']) {
    const context = await browser.newContext({
      locale: 'en-US',
      colorScheme,
      viewport: { width: 1280, height: 860 },
      deviceScaleFactor: 1,
    });
    const page = await context.newPage();
    await page.goto(url);
    await page.getByLabel('API key').fill(key);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.locator('.shell').waitFor();
    for (const [name, path] of pages) {
      await page.goto(url + path);
      await page.getByRole('heading', { level: 1 }).waitFor();
      await page.locator('.waiting').first().waitFor({ state: 'detached' });
      await page.getByText('Live', { exact: true }).waitFor();
      await page.screenshot({ path: join(images, `dashboard-${name}-${colorScheme}.png`) });
    }
    await context.close();
  }
  await browser.close();
}
