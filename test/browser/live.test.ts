import { expect, it } from 'vitest';
import { describeInBrowser, openDashboard, useBrowser } from '../support/browser.ts';
import { startDaemon } from '../support/daemon/daemon.ts';
import { eventually } from '../support/eventually.ts';

const context = useBrowser();

describeInBrowser('a page that is left open', () => {
  it('shows progress, logs and the end of a job without a reload', async () => {
    const { page, api, goTo } = await openDashboard(context);
    const job = await api('POST', '/api/targets/live-1/jobs', {
      type: 'demo.pipeline',
      payload: { items: 7, seconds: 6 },
    });
    await goTo(`/jobs/${job.id}`);
    await page
      .getByText(/step \d+ of 10/)
      .first()
      .waitFor();
    await page.getByRole('heading', { name: 'demo.pipeline' }).waitFor();
    await page.locator('.job-title').getByText('Success').waitFor({ timeout: 60_000 });
    await page.getByRole('button', { name: /^Attempt 1: completed/ }).waitFor();
    await page.getByRole('button', { name: /^upload, / }).waitFor();
    await page.getByRole('region', { name: 'Result' }).getByText('uploaded: ').waitFor();
  });

  it('comes back after a restart of the daemon and misses nothing', async () => {
    const port = 20_000 + Math.floor(Math.random() * 20_000);
    const env = { PORT: String(port) };
    const { dashboardDir } = context;
    const first = await startDaemon(context, { dashboardDir, env });
    const { page, api, goTo } = await openDashboard(context, { daemon: first });
    await goTo('/targets?search=again-');
    await page.getByText('Live', { exact: true }).waitFor();
    await first.stop(0);
    await page.getByText(/Reconnecting/).waitFor();
    await startDaemon(context, { dashboardDir, env });
    await api('POST', '/api/targets/again-1/jobs', { type: 'demo.echo', payload: {} });
    await page.getByRole('link', { name: 'again-1' }).waitFor();
    await page.getByText('Live', { exact: true }).waitFor();
  });

  it('counts the holds in its title', async () => {
    const { page, api } = await openDashboard(context);
    await api('POST', '/api/targets/title-1/jobs', { type: 'demo.fail', payload: { recoverable: false } });
    await expect.poll(() => page.title(), { timeout: 20_000 }).toMatch(/^\(\d+\) Overview/);
  });

  it('asks for little and keeps little however many events arrive', async () => {
    const { page, api, goTo } = await openDashboard(context);
    await goTo('/events');
    await page.getByRole('heading', { name: 'Events' }).waitFor();
    const sent: string[] = [];
    page.on('request', (request) => sent.push(request.url()));
    // Some 3,000 events: a minute of 50 a second.
    const jobs = Array.from({ length: 1000 }, (_, n) => ({ type: 'demo.echo', payload: { n } }));
    await api('POST', '/api/jobs/batch', { jobs });
    await eventually(
      async () => {
        const { counts } = (await api('GET', '/api/stats/jobs')) as { counts: { SUCCESS: number } };
        expect(counts.SUCCESS).toBeGreaterThanOrEqual(jobs.length);
      },
      { timeoutMs: 60_000 },
    );
    await page.locator('.event-line').nth(499).waitFor();
    expect(await page.locator('.event-line').count()).toBeLessThanOrEqual(500);
    expect(sent.length).toBeLessThan(30);
  });
});
