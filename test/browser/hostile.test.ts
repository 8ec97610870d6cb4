import { randomUUID } from 'node:crypto';
import { AxeBuilder } from '@axe-core/playwright';
import { expect, it } from 'vitest';
import { defineJob } from '../../server/worker/handlers/define-job.ts';
import { type Dashboard, describeInBrowser, openDashboard, signIn, useBrowser } from '../support/browser.ts';
import { fastSettings } from '../support/daemon/daemon.ts';
import { eventually } from '../support/eventually.ts';

const context = useBrowser();
const script = '<img src=x onerror="alert(1)"><script>alert(2)</script>';
const link = 'javascript:alert(3)';

/** Fails with markup in every part of its error, and logs some. */
const hostile = defineJob({
  type: 'test.hostile',
  run: ({ log, progress }) => {
    log.error(script, { [script]: link });
    progress(50, script);
    throw Object.assign(new Error(script), { name: script, cause: new Error(script), stack: `${script}\n at ${link}` });
  },
});

/** Puts markup into everything that a tenant can fill. */
async function fill({ api, daemon }: Dashboard): Promise<{ job: string; target: string }> {
  const target = `t ${script} ${randomUUID()}`;
  await fetch(`${daemon.url}/api/admin/tenants/${context.tenant.slug}`, {
    method: 'PATCH',
    headers: { authorization: `Bearer ${fastSettings.ADMIN_API_KEY}`, 'content-type': 'application/json' },
    body: JSON.stringify({ settings: { remote_job_types: ['*'] } }),
  });
  const path = `/api/targets/${encodeURIComponent(target)}`;
  await api('PUT', path, { labels: { [script.slice(0, 90)]: script, url: link } });
  const job = await api('POST', `${path}/jobs`, {
    type: hostile.type,
    payload: { [script]: script, link },
    author: script,
    queue: script,
    constraints: { [script]: script },
  });
  await api('POST', '/api/jobs', { type: script, payload: {}, author: script });
  await api('POST', `${path}/jobs`, { type: script, payload: {} });
  await eventually(async () => expect(await api('GET', `/api/jobs/${job.id}`)).toMatchObject({ status: 'ERROR' }));
  await api('POST', `${path}/pause`, { reason: script, author: script });
  const paused = await api('POST', `/api/targets/${randomUUID()}/jobs`, {
    type: 'demo.sleep',
    payload: { seconds: 60 },
  });
  await api('POST', `/api/jobs/${paused.id}/pause`, { reason: script, author: script });
  await api('POST', '/api/schedules', {
    name: `${script} ${randomUUID()}`,
    cron: '0 8 * * *',
    job: { type: 'demo.echo', payload: {}, target_id: target },
    author: script,
  });
  await api('POST', '/api/operations', { action: 'cancel', filter: { type: 'none' }, reason: script, author: script });
  return { job: String(job.id), target };
}

function pagesOf({ job, target }: { job: string; target: string }): string[] {
  return [
    '/',
    '/targets',
    `/targets/${encodeURIComponent(target)}`,
    '/jobs',
    `/jobs/${job}`,
    '/workers',
    '/schedules',
    '/webhooks',
    '/events',
    '/operations',
    '/capacity',
    '/keys',
    '/docs',
  ];
}

async function waitOn(dashboard: Dashboard, path: string): Promise<void> {
  await dashboard.goTo(path);
  await dashboard.page.getByRole('heading', { level: 1 }).waitFor();
  await dashboard.page.locator('.waiting').first().waitFor({ state: 'detached' });
}

/** The rules that see colours; the others find the same in both themes. */
const colourRules = ['color-contrast', 'link-in-text-block'];

/** What is wrong with the page in the light theme, then with its colours in the dark one. */
async function violationsOn({ page }: Dashboard, path: string): Promise<string[]> {
  const found: string[] = [];
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme });
    const axe = new AxeBuilder({ page });
    const { violations } = await (colorScheme === 'dark' ? axe.withRules(colourRules) : axe).analyze();
    for (const { id, nodes } of violations) {
      found.push(`${path} ${colorScheme} ${id}: ${nodes[0]?.html} ${nodes[0]?.failureSummary}`);
    }
  }
  return found;
}

describeInBrowser('what tenants write', () => {
  it('is text on every page, never markup, and the policy has nothing to refuse', async () => {
    const dashboard = await openDashboard(context, { handlers: [hostile] });
    const made = await fill(dashboard);
    for (const path of pagesOf(made)) {
      await waitOn(dashboard, path);
      expect(await dashboard.page.locator('img, script:not([src])').count(), path).toBe(0);
      expect(await dashboard.page.locator('a[href^="javascript:"]').count(), path).toBe(0);
    }
    await waitOn(dashboard, `/jobs/${made.job}`);
    await dashboard.page.getByText(script, { exact: false }).first().waitFor();
    await dashboard.page.getByRole('button', { name: 'Run again' }).click();
    await dashboard.page.keyboard.press('Escape');
    await dashboard.page.keyboard.press('Control+k');
    await dashboard.page.getByRole('combobox').fill('<img');
    await dashboard.page.getByRole('option').first().waitFor();
  });

  it('is accessible on every page, light and dark', async () => {
    const dashboard = await openDashboard(context, { handlers: [hostile] });
    const made = await fill(dashboard);
    for (const path of [...pagesOf(made), '/docs#createJob']) {
      await waitOn(dashboard, path);
      expect(await violationsOn(dashboard, path)).toEqual([]);
    }
  });

  it('is accessible on the sign-in page and the pages of operators, light and dark', async () => {
    const dashboard = await openDashboard(context, { signIn: false });
    await dashboard.page.getByLabel('API key').waitFor();
    expect(await violationsOn(dashboard, '/sign-in')).toEqual([]);
    await signIn(dashboard.page, fastSettings.ADMIN_API_KEY as string);
    await waitOn(dashboard, '/tenants');
    expect(await violationsOn(dashboard, '/tenants')).toEqual([]);
    await dashboard.page.getByLabel('Tenant', { exact: true }).selectOption(context.tenant.slug);
    for (const path of ['/settings', '/workers']) {
      await waitOn(dashboard, path);
      expect(await violationsOn(dashboard, path)).toEqual([]);
    }
  });

  it('fits a phone without scrolling sideways', async () => {
    const dashboard = await openDashboard(context, { handlers: [hostile], width: 390 });
    const { api } = dashboard;
    const job = await api('POST', '/api/targets/a-target-with-a-name-that-is-long/jobs', {
      type: 'demo.echo',
      payload: {},
    });
    for (const path of pagesOf({ job: String(job.id), target: 'a-target-with-a-name-that-is-long' })) {
      await waitOn(dashboard, path);
      expect(await dashboard.page.evaluate('document.documentElement.scrollWidth'), path).toBeLessThanOrEqual(390);
    }
  });
});
