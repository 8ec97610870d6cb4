import { expect, it } from 'vitest';
import { describeInBrowser, openDashboard, useBrowser } from '../support/browser.ts';

const context = useBrowser();

describeInBrowser('the API explorer', () => {
  it('shows every operation without signing in, and does not send it', async () => {
    const { page, goTo, daemon } = await openDashboard(context, { signIn: false });
    await goTo('/docs');
    await page.getByRole('heading', { name: 'API', exact: true }).waitFor();
    const document = (await (await fetch(`${daemon.url}/openapi.json`)).json()) as { paths: Record<string, object> };
    const operations = Object.values(document.paths).reduce((sum, methods) => sum + Object.keys(methods).length, 0);
    expect(await page.locator('.operation-doc').count()).toBe(operations);
    await page.getByText('Read a job', { exact: true }).click();
    await page.getByText('Sign in to send requests from here.').waitFor();
    await page.getByRole('link', { name: 'Sign in to Leasehold' }).click();
    await page.getByLabel('API key').waitFor();
  });

  it('finds an operation, fills its form and sends it with the session', async () => {
    const { page, goTo, api } = await openDashboard(context);
    await goTo('/docs#createJob');
    const create = page.locator('#createJob');
    await create.getByRole('button', { name: 'Send POST' }).waitFor();
    await create.getByLabel('Body').fill('{ "type": "demo.echo", ');
    await create.getByRole('button', { name: 'Send POST' }).click();
    await create.getByText('The body is not JSON').waitFor();
    await create
      .getByLabel('Body')
      .fill('{ "type": "demo.echo", "payload": { "from": "docs" }, "target_id": "docs-1" }');
    await create.getByRole('button', { name: 'Send POST' }).click();
    await create.locator('.answer').getByText('201', { exact: true }).waitFor();
    const { jobs } = (await api('GET', '/api/targets/docs-1/jobs')) as { jobs: { id: string }[] };
    expect(jobs).toHaveLength(1);

    await page.getByLabel('Part of a path, a name or a summary').fill('getJobWhy');
    await page.locator('#getJobWhy > summary').click();
    await page.locator('#getJobWhy').getByLabel('job_id (required)').fill(String(jobs[0]?.id));
    await page.locator('#getJobWhy').getByRole('button', { name: 'Send GET' }).click();
    await page.locator('#getJobWhy .answer').getByText('200', { exact: true }).waitFor();
  });
});
