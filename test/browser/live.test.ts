import { expect, it } from 'vitest';
import { freePort } from '../../server/embedded-postgres/cluster.ts';
import { defineJob } from '../../server/worker/handlers/define-job.ts';
import { describeInBrowser, openDashboard, useBrowser } from '../support/browser.ts';
import { startDaemon } from '../support/daemon/daemon.ts';
import { eventually } from '../support/eventually.ts';

const context = useBrowser();

describeInBrowser('a page that is left open', () => {
  it('shows progress, logs and the end of a job without a reload', async () => {
    let finish = () => {};
    // It ends when the page has shown its progress, however long that takes.
    const isShown = new Promise<void>((resolve) => {
      finish = resolve;
    });
    const watched = defineJob({
      type: 'test.watched',
      phases: [
        {
          name: 'download',
          run: async ({ progress }) => {
            progress(10, 'step 1 of 10');
            await isShown;
          },
        },
        { name: 'upload', run: () => ({ uploaded: 7 }) },
      ],
    });
    const { page, api, goTo } = await openDashboard(context, { handlers: [watched] });
    const job = await api('POST', '/api/targets/live-1/jobs', { type: watched.type, payload: {} });
    await goTo(`/jobs/${job.id}`);
    await page.getByText('step 1 of 10').first().waitFor();
    await page.getByRole('heading', { name: watched.type }).waitFor();
    finish();
    await page.locator('.job-title').getByText('Success').waitFor();
    await page.getByRole('button', { name: /^Attempt 1: completed/ }).waitFor();
    await page.getByRole('button', { name: /^upload, / }).waitFor();
    await page.getByRole('region', { name: 'Result', exact: true }).getByText('uploaded: ').waitFor();
  });

  it('reconnects after a restart of the daemon and misses nothing', async () => {
    const env = { PORT: String(await freePort()) };
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

  it('shows events between its first read and the start of the stream', async () => {
    const { page, api, goTo } = await openDashboard(context);
    let open = () => {};
    const opened = new Promise<void>((resolve) => {
      open = resolve;
    });
    await page.route('**/api/events/stream', async (route) => {
      await opened;
      await route.continue();
    });
    await goTo('/targets?show=held&search=between-1');
    await page
      .getByText(/No .*target/i)
      .first()
      .waitFor();
    const job = await api('POST', '/api/targets/between-1/jobs', {
      type: 'demo.fail',
      payload: { recoverable: false },
    });
    await eventually(async () => expect(await api('GET', `/api/jobs/${job.id}`)).toMatchObject({ status: 'ERROR' }));
    open();
    await page.getByRole('article', { name: 'Target between-1' }).waitFor();
  });

  it('counts the holds in its title', async () => {
    const { page, api } = await openDashboard(context);
    await api('POST', '/api/targets/title-1/jobs', { type: 'demo.fail', payload: { recoverable: false } });
    await expect.poll(() => page.title(), { timeout: 60_000 }).toMatch(/^\(\d+\) Overview/);
  });

  it('sends few requests and keeps little memory, however many events arrive', async () => {
    const { page, api, goTo } = await openDashboard(context);
    await goTo('/events');
    await page.getByRole('heading', { name: 'Events', exact: true }).waitFor();
    const sent: string[] = [];
    const startedAt = performance.now();
    page.on('request', (request) => sent.push(request.url()));
    // Some 3,000 events: a minute of 50 a second.
    const jobs = Array.from({ length: 1000 }, (_, n) => ({ type: 'demo.echo', payload: { n } }));
    await api('POST', '/api/jobs/batch', { jobs });
    await eventually(async () => {
      const { counts } = (await api('GET', '/api/stats/jobs')) as { counts: { SUCCESS: number } };
      expect(counts.SUCCESS).toBeGreaterThanOrEqual(jobs.length);
    });
    await page.locator('.event-line').nth(499).waitFor();
    expect(await page.locator('.event-line').count()).toBeLessThanOrEqual(500);
    expect(sent.length).toBeLessThan(30 + ((performance.now() - startedAt) / 1000) * 3);
  });

  it('neither leaks memory nor floods the daemon after 180,000 events, an hour of 50 a second', async () => {
    const { page, goTo, browserContext } = await openDashboard(context);
    const session = await browserContext.newCDPSession(page);
    await session.send('Performance.enable');
    const heap = async () => {
      await session.send('HeapProfiler.collectGarbage');
      const { metrics } = await session.send('Performance.getMetrics');
      const of = (name: string) => metrics.find((metric) => metric.name === name)?.value ?? 0;
      return { bytes: of('JSHeapUsedSize'), nodes: of('Nodes'), listeners: of('JSEventListeners') };
    };
    const perConnection = 10_000;
    for (const path of ['/', '/events']) {
      let connections = 0;
      await page.route('**/api/events/stream', async (route) => {
        connections += 1;
        if (connections > 18) return route.fulfill({ contentType: 'text/event-stream', body: ': quiet\n\n' });
        await route.fulfill({ contentType: 'text/event-stream', body: frames(perConnection, connections) });
      });
      await goTo(path);
      await page.getByRole('heading', { level: 1 }).waitFor();
      await expect.poll(() => connections, { timeout: 240_000 }).toBeGreaterThan(1);
      const before = await heap();
      const sent: string[] = [];
      page.on('request', (request) => sent.push(request.url()));
      const startedAt = performance.now();
      await expect.poll(() => connections, { timeout: 240_000 }).toBeGreaterThan(18);
      const after = await heap();
      const seconds = (performance.now() - startedAt) / 1000;
      const reads = sent.filter((url) => !url.includes('/events/stream')).length;
      console.log(
        `${path}: 170,000 events in ${seconds.toFixed(0)} s, ${reads} requests, heap ${mb(before.bytes)} to ${mb(after.bytes)} MB, ${before.nodes} to ${after.nodes} nodes`,
      );
      expect(after.bytes - before.bytes).toBeLessThan(8_000_000);
      expect(after.nodes).toBeLessThan(before.nodes + 20_000);
      expect(after.listeners).toBeLessThan(before.listeners + 2_000);
      // A view asks once in two seconds at most, whatever arrives; the overview has three that follow events.
      expect(reads).toBeLessThan(10 + seconds * 3);
      await page.unroute('**/api/events/stream');
      page.removeAllListeners('request');
    }
  }, 600_000);
});

function mb(bytes: number): string {
  return (bytes / 1e6).toFixed(1);
}

/** The frames of one connection: jobs that fail and end, on many targets. */
function frames(count: number, connection: number): string {
  const at = new Date().toISOString();
  const parts: string[] = [];
  for (let n = 0; n < count; n++) {
    const id = String(connection * count + n);
    const jobId = `01900000-0000-7000-8000-${id.padStart(12, '0')}`;
    const [type, from, to] = n % 2 === 0 ? ['job.failed', 'RUNNING', 'ERROR'] : ['job.completed', 'RUNNING', 'SUCCESS'];
    const target = `t${n % 500}`;
    const event = { id, at, type, job_id: jobId, target_id: target, from, to, attempt: 1, actor: 'w', data: null };
    parts.push(`id: ${id}\nevent: ${type}\ndata: ${JSON.stringify(event)}\n\n`);
  }
  return parts.join('');
}
