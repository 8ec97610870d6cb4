import { readFile } from 'node:fs/promises';
import { AxeBuilder } from '@axe-core/playwright';
import { expect, it, onTestFinished } from 'vitest';
import { z } from 'zod';
import { defineJob } from '../../server/worker/handlers/define-job.ts';
import { describeInBrowser, openDashboard, useBrowser } from '../support/browser.ts';
import { eventually } from '../support/eventually.ts';

const context = useBrowser();
const failing = { type: 'demo.fail', payload: { times: 1, recoverable: false } };

describeInBrowser('holds', () => {
  it('shows a hold with its reason, its stack and the jobs behind it, and resumes it', async () => {
    const { page, api } = await openDashboard(context);
    const job = await api('POST', '/api/targets/press-1/jobs', failing);
    const next = await api('POST', '/api/targets/press-1/jobs', { type: 'demo.echo', payload: { n: 1 } });
    const card = page.getByRole('article', { name: 'demo.fail on press-1' });
    await card.getByText('failing on purpose, attempt 1 of 1', { exact: true }).waitFor();
    await card.getByText('1 job waits behind it').waitFor();
    await card.getByText('Fatal, attempt 1').click();
    await card.getByText(/demo\/handlers/).waitFor();

    await card.getByRole('button', { name: 'Resume' }).click();
    const dialog = page.getByRole('dialog', { name: 'Resume job' });
    await dialog.getByLabel('Reason').fill('The disk was replaced');
    await dialog.getByLabel('Your name').fill('ann');
    await dialog.getByRole('button', { name: 'Resume job' }).click();
    await card.waitFor({ state: 'detached' });
    await eventually(async () => expect(await api('GET', `/api/jobs/${next.id}`)).toMatchObject({ status: 'SUCCESS' }));
    await page.goto(page.url().replace(/\/$/, `/jobs/${job.id}`));
    await page.getByText('The disk was replaced').waitFor();
    await page.getByText(/^ann \(key:/).waitFor();
  });

  it('resolves a job with a result from its lane', async () => {
    const { page, api, goTo } = await openDashboard(context);
    const job = await api('POST', '/api/targets/press-2/jobs', failing);
    await goTo('/targets?show=held&search=press-2');
    const lane = page.getByRole('article', { name: 'Target press-2' });
    await lane.getByRole('button', { name: 'Resolve' }).click();
    const dialog = page.getByRole('dialog', { name: 'Resolve job' });
    await dialog.getByLabel('Result').fill('{ broken');
    await dialog.getByRole('button', { name: 'Resolve job' }).click();
    await dialog.getByRole('alert').waitFor();
    await dialog.getByLabel('Result').fill('{ "done_by": "hand" }');
    await dialog.getByRole('button', { name: 'Resolve job' }).click();
    await lane.waitFor({ state: 'detached' });
    expect(await api('GET', `/api/jobs/${job.id}`)).toMatchObject({ status: 'SUCCESS', result: { done_by: 'hand' } });
  });

  it('pauses a target with a reason, shows the author, and undoes it', async () => {
    const { page, api, goTo } = await openDashboard(context);
    await api('POST', '/api/targets/press-3/jobs', { type: 'demo.echo', payload: {} });
    await goTo('/targets?search=press-3');
    await page.getByRole('button', { name: 'Pause target press-3' }).click();
    const dialog = page.getByRole('dialog', { name: 'Pause press-3' });
    await dialog.getByLabel('Reason').fill('Maintenance');
    await dialog.getByLabel('Your name').fill('ben');
    await dialog.getByRole('button', { name: 'Pause target' }).click();
    await page.getByText('Paused by ben: Maintenance').waitFor();
    await page.getByRole('button', { name: 'Undo' }).click();
    await eventually(async () => expect(await api('GET', '/api/targets/press-3')).toMatchObject({ paused: false }));
  });

  it('retries all failed jobs of a type after a dry run that shows which jobs stay unchanged', async () => {
    const { page, api, goTo } = await openDashboard(context);
    const ids: unknown[] = [];
    for (let n = 0; n < 3; n++) ids.push((await api('POST', `/api/targets/bulk-${n}/jobs`, failing)).id);
    const paused = await api('POST', '/api/targets/bulk-9/jobs', { ...failing, run_at: '2090-01-01T00:00:00Z' });
    await api('POST', `/api/jobs/${paused.id}/pause`, {});
    for (const id of ids) {
      await eventually(async () => expect(await api('GET', `/api/jobs/${id}`)).toMatchObject({ status: 'ERROR' }));
    }
    await goTo('/jobs?held=true&type=demo.fail&search=bulk-');
    await page.getByText('bulk-0').waitFor();
    await page.getByLabel('Select all that are loaded').check();
    await page.getByRole('button', { name: 'Retry failed' }).click();
    const dialog = page.getByRole('dialog', { name: 'Retry jobs' });
    await dialog.getByText('3 jobs will be retried').waitFor();
    await dialog.getByText('1 paused: is paused, not failed').waitFor();
    await dialog.getByRole('button', { name: 'Retry 3 jobs' }).click();
    await dialog.getByText('3 of 3 done').waitFor();
    for (const id of ids) {
      await eventually(async () => expect(await api('GET', `/api/jobs/${id}`)).toMatchObject({ status: 'SUCCESS' }));
    }
    expect(await api('GET', `/api/jobs/${paused.id}`)).toMatchObject({ status: 'PAUSED' });
  });

  it('starts a canary of a held lane: the lane resumes after its success, and stays stopped otherwise', async () => {
    const { page, api, goTo } = await openDashboard(context);
    for (const [target, times] of [
      ['canary-1', 1],
      ['canary-2', 9],
    ] as const) {
      const first = await api('POST', `/api/targets/${target}/jobs`, {
        ...failing,
        payload: { times, recoverable: false },
      });
      const next = await api('POST', `/api/targets/${target}/jobs`, { type: 'demo.echo', payload: {} });
      await goTo(`/targets?show=held&search=${target}`);
      const lane = page.getByRole('article', { name: `Target ${target}` });
      await lane.getByRole('button', { name: 'Try one' }).click();
      const dialog = page.getByRole('dialog', { name: `Try one job on ${target}` });
      await dialog.getByLabel('Reason').fill('The disk was replaced');
      await dialog.getByRole('button', { name: 'Try one job' }).click();
      await dialog.waitFor({ state: 'detached' });
      await eventually(async () =>
        expect(await api('GET', `/api/jobs/${first.id}`)).toMatchObject({
          status: times === 1 ? 'SUCCESS' : 'ERROR',
          attempts: 2,
        }),
      );
      await eventually(async () =>
        expect(await api('GET', `/api/jobs/${next.id}`)).toMatchObject({ status: times === 1 ? 'SUCCESS' : 'QUEUED' }),
      );
    }
    await page.getByRole('article', { name: 'Target canary-2' }).getByText('failing on purpose').waitFor();
  });

  it('retries all jobs that a search finds, with the oldest as a canary', async () => {
    const { page, api, goTo } = await openDashboard(context);
    const ids: unknown[] = [];
    for (let n = 0; n < 3; n++) {
      const { id } = await api('POST', `/api/targets/birds-${n}/jobs`, failing);
      await eventually(async () => expect(await api('GET', `/api/jobs/${id}`)).toMatchObject({ status: 'ERROR' }));
      ids.push(id);
    }
    await goTo('/jobs?search=birds-');
    await page.getByText('birds-0').waitFor();
    await page.getByRole('button', { name: 'Retry failed' }).click();
    const dialog = page.getByRole('dialog', { name: 'Retry jobs' });
    await dialog.getByText('3 jobs will be retried').waitFor();
    await dialog.getByLabel(/^Canary/).check();
    await dialog.getByRole('button', { name: 'Retry 3 jobs' }).click();
    await dialog.getByText('Canary succeeded').waitFor();
    await dialog.getByText('3 of 3 done').waitFor();
    await dialog.getByRole('button', { name: 'Close', exact: true }).last().click();
    await goTo('/operations');
    await page.getByText('search: birds-').first().waitFor();
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      goTo('/jobs?search=birds-').then(() => page.getByRole('button', { name: 'Download as JSON' }).click()),
    ]);
    const saved = JSON.parse(await readFile(await download.path(), 'utf8')) as { id: string; payload: unknown }[];
    expect(saved.map((job) => job.id)).toEqual([...ids].reverse());
    expect(saved[0]?.payload).toEqual(failing.payload);
  });

  it('answers a question with a button on the overview, and another by its link without scripts on a phone', async () => {
    const { page, api } = await openDashboard(context);
    const ask = (question: string) => api('POST', '/api/jobs', { type: 'demo.approval', payload: { question } });
    const ship = await ask('Ship it?');
    const card = page.getByRole('article', { name: 'Question: Ship it?' });
    await card.getByLabel('Note').fill('after lunch');
    await card.getByLabel('Your name').fill('ann');
    await card.getByRole('button', { name: 'Approve' }).click();
    await card.waitFor({ state: 'detached' });
    await eventually(async () =>
      expect(await api('GET', `/api/jobs/${ship.id}`)).toMatchObject({
        result: { approved: true, note: 'after lunch' },
      }),
    );
    await page.goto(page.url().replace(/\/$/, `/jobs/${ship.id}`));
    await page.getByText('answered by ann').waitFor();

    const later = await ask('And this <b>one</b>?');
    const questions = await eventually(async () => {
      const found = (await api('GET', `/api/questions?job_id=${later.id}`)).questions as { id: string }[];
      expect(found).toHaveLength(1);
      return found;
    });
    const { url } = await api('POST', `/api/questions/${questions[0]?.id}/links`, { recipient: 'ben' });
    for (const colorScheme of ['dark', 'light'] as const) {
      const viewport = { width: 390, height: 800 };
      const phone = await context.browser.newContext({
        viewport,
        colorScheme,
        javaScriptEnabled: colorScheme === 'dark',
      });
      onTestFinished(() => phone.close());
      phone.setDefaultTimeout(60_000);
      const form = await phone.newPage();
      await form.goto(String(url));
      await form.getByRole('heading', { name: 'And this <b>one</b>?' }).waitFor();
      if (colorScheme === 'dark') {
        expect(await form.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(390);
        expect((await new AxeBuilder({ page: form }).analyze()).violations).toEqual([]);
        continue;
      }
      await form.getByLabel(/^Note/).fill('no');
      await form.getByRole('button', { name: 'Reject' }).click();
      await form.getByText('Your answer was recorded.').waitFor();
      await form.goto(String(url));
      await form.getByText('The question was answered').waitFor();
    }
    await eventually(async () =>
      expect(await api('GET', `/api/jobs/${later.id}`)).toMatchObject({ result: { approved: false, note: 'no' } }),
    );
  });

  it('has a control for each kind of field, and the question of a budget on the page of its job', async () => {
    const schema = z.object({
      dueDate: z.iso.date(),
      contact: z.email().optional(),
      parts: z.array(z.enum(['app', 'site', 'docs'])),
      urgent: z.boolean(),
      color: z.enum(['red', 'green']),
      hosts: z.array(z.string()),
      note: z.string().nullable(),
      begin: z.iso.datetime(),
      shipTo: z.object({ street: z.string() }),
    });
    const plan = defineJob({
      type: 'plan',
      run: ({ ask }) => ask({ title: 'When?', context: { service: 'billing', changes: 3 }, schema, actions: ['Plan'] }),
    });
    const spend = defineJob({
      type: 'spend',
      run: ({ step, addUsage }) => step('pay', () => addUsage({ cents: 120 })),
    });
    const { page, api, goTo } = await openDashboard(context, { handlers: [plan, spend] });
    const planned = await api('POST', '/api/jobs', { type: 'plan' });
    await goTo(`/jobs/${planned.id}`);
    const card = page.getByRole('article', { name: 'Question: When?' });
    await card.getByLabel('Due date').waitFor();
    // A list of names and values, not a document.
    expect(await card.getByRole('term').allTextContents()).toEqual(['service', 'changes']);
    expect(await card.getByRole('definition').allTextContents()).toEqual(['billing', '3']);
    await card.getByLabel('Due date').fill('2027-03-04');
    expect(await card.getByLabel('Contact').getAttribute('type')).toBe('email');
    await card.getByText('Optional.').first().waitFor();
    await card.getByLabel('app').check();
    await card.getByLabel('docs').check();
    // A circle beside its word, not a text field of the whole width.
    expect((await card.getByLabel('Yes').boundingBox())?.width).toBeLessThan(24);
    await card.getByLabel('Yes').check();
    // Nothing is chosen that the person has not chosen.
    expect(await card.getByLabel('Color').inputValue()).toBe('');
    await card.getByLabel('Color').selectOption('green');
    await card.getByLabel('Hosts (one per line)').fill('a.example\nb.example');
    // In the zone of the browser.
    await card.getByLabel('Begin').fill('2027-03-04T05:06');
    const begin = await page.evaluate(() => new Date('2027-03-04T05:06').toISOString().replace('.000Z', 'Z'));
    await card.getByLabel('Ship to: Street').fill('A 1');
    await card.getByRole('button', { name: 'Plan' }).click();
    const answered = {
      result: {
        action: 'Plan',
        dueDate: '2027-03-04',
        parts: ['app', 'docs'],
        urgent: true,
        color: 'green',
        hosts: ['a.example', 'b.example'],
        note: null,
        begin,
        shipTo: { street: 'A 1' },
      },
    };
    await eventually(async () => expect(await api('GET', `/api/jobs/${planned.id}`)).toMatchObject(answered));

    const spent = await api('POST', '/api/jobs', { type: 'spend', budget: { cents: 100 } });
    await goTo(`/jobs/${spent.id}`);
    const question = page.getByRole('article', { name: /^Question: Budget exceeded/ });
    await question.getByLabel('New limit in cents').fill('500');
    await question.getByRole('button', { name: 'Raise the limit and continue' }).click();
    await eventually(async () =>
      expect(await api('GET', `/api/jobs/${spent.id}`)).toMatchObject({ status: 'SUCCESS' }),
    );
  });
});
