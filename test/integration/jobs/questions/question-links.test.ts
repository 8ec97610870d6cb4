// Links to questions: the hosted form works without a key and without scripts, escapes what it shows, and a link is valid
// until the answer, its time, the timeout, a cancel or its revocation.
import { beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { queueDueJobs } from '../../../../server/jobs/finish/due-jobs.ts';
import { scopes } from '../../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { useDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { answerToUnfinished } from '../../../support/http/unfinished-request.ts';
import { reread } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>'&`;

const handlers = [
  defineJob({
    type: 'form',
    run: ({ ask }) =>
      ask({
        title: 'Which plan?',
        context: { customer: 'acme', seats: 12, more: { a: 1 } },
        schema: z.object({
          approve: z.boolean(),
          plan: z.enum(['small', 'large']),
          seats: z.int().min(1).max(100),
          note: z.string().max(500).optional().describe('Shown to the customer.'),
          extras: z.array(z.enum(['x', 'y'])).optional(),
          urgent: z.boolean().default(false),
          carrier: z.enum(['a', 'b']).default('b'),
        }),
      }),
  }),
  defineJob({
    type: 'buttons',
    run: ({ ask }) =>
      ask({
        title: 'Refund?',
        schema: z.object({ approve: z.boolean(), note: z.string().max(10).optional() }),
        actions: [
          { name: 'approve', label: 'Approve', style: 'primary', answer: { approve: true } },
          { name: 'reject', label: 'Reject', style: 'danger', answer: { approve: false } },
          { name: 'escalate', label: 'Escalate', answer: { approve: false } },
        ],
      }),
  }),
  defineJob({
    type: 'hostile',
    run: ({ ask }) =>
      ask({
        title: hostile,
        context: { [hostile]: hostile, nested: [hostile] },
        schema: z.object({ [hostile]: z.string().describe(hostile), choice: z.enum([hostile, 'b']) }),
        actions: [{ name: `go ${hostile}`.slice(0, 50), label: hostile.slice(0, 50) }],
      }),
  }),
];
const running = useDaemon(context, { handlers });
let key = '';
beforeAll(async () => {
  key = (await createApiKey(context.db, { tenantId: context.tenant.id, name: 'test', scopes })).text;
});

async function call(method: string, path: string, body?: unknown) {
  const response = await fetch(running.daemon.url + path, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  // biome-ignore lint/suspicious/noExplicitAny: as a client without types reads it.
  return { status: response.status, body: (text === '' ? {} : JSON.parse(text)) as any };
}

async function ask(type: string) {
  const { body: job } = await call('POST', '/api/jobs', { type, payload: {} });
  return eventually(async () => {
    expect((await reread(context, job)).status).toBe('WAITING');
    const { body } = await call('GET', `/api/questions?job_id=${job.id}`);
    return { job, id: String(body.questions[0].id) };
  });
}

async function link(id: string, body: object = {}) {
  const made = await call('POST', `/api/questions/${id}/links`, body);
  expect(made.status).toBe(201);
  return made.body as { id: string; url: string; expires_at: string };
}

/** As a browser without scripts and without a session. */
async function browse(url: string, form?: Record<string, string> | [string, string][]) {
  const response = await fetch(url, form && { method: 'POST', body: new URLSearchParams(form) });
  return { status: response.status, text: await response.text(), headers: response.headers };
}

test('the form has a field for each property, keeps entered values, names errors, and accepts the answer', async () => {
  const { job, id } = await ask('form');
  const { url } = await link(id, { recipient: 'ann@example.com' });
  const page = await browse(url);
  expect(page.status).toBe(200);
  expect(page.headers.get('content-security-policy')).toMatch(/^default-src 'none'; style-src 'sha256-/);
  expect(page.headers.get('cache-control')).toBe('no-store');
  expect(page.headers.get('referrer-policy')).toBe('no-referrer');
  expect(page.text).not.toContain('<script');
  const order = ['approve', 'plan', 'seats', 'note', 'extras', 'urgent'].map((name) =>
    page.text.indexOf(`field.${name}`),
  );
  expect(order).toEqual(order.toSorted((a, b) => a - b));
  for (const part of [
    '<h1>Which plan?</h1>',
    '<dt>customer</dt><dd>acme</dd>',
    '<legend>Approve</legend>',
    '<select id="field-1" name="field.plan" required>',
    'type="number" step="1" min="1" max="100"',
    '<textarea rows="4" id="field-3" name="field.note"',
    'Shown to the customer.',
    'Send the answer',
  ]) {
    expect(page.text).toContain(part);
  }
  // A field with a default is not left open.
  expect(page.text).toContain('<label for="field-6">Carrier</label>');
  expect(page.text).toContain('Note <span class="hint">optional</span>');
  const entered = { 'field.plan': 'large', 'field.seats': '500', 'field.note': 'two\r\nlines', 'field.urgent': 'true' };
  const refused = await browse(url, entered);
  expect(refused.status).toBe(400);
  expect(refused.text).toContain('role="alert"');
  expect(refused.text).toContain('value="500"');
  expect(refused.text).toContain('<option value="large" selected>');
  expect(refused.text.match(/class="error"/g)).toHaveLength(2);
  const done = await browse(url, [
    ...Object.entries({ ...entered, 'field.seats': '50', 'field.approve': 'true' }),
    ['field.extras', 'x'],
    ['field.extras', 'y'],
  ]);
  expect(done).toMatchObject({ status: 200, text: expect.stringContaining('Your answer was recorded.') });
  const answer = {
    approve: true,
    plan: 'large',
    seats: 50,
    note: 'two\nlines',
    extras: ['x', 'y'],
    urgent: true,
    carrier: 'b',
  };
  await eventually(async () => expect(await reread(context, job)).toMatchObject({ status: 'SUCCESS', result: answer }));
  expect((await call('GET', `/api/questions/${id}`)).body).toMatchObject({ answered_by: 'ann@example.com', answer });
  expect((await call('GET', `/api/questions/${id}/links`)).body.links[0].used_at).not.toBeNull();
  expect(await browse(url)).toMatchObject({ status: 410, text: expect.stringContaining('was answered') });
  expect(await browse(url, entered)).toMatchObject({ status: 410 });
  expect((await call('POST', `/api/questions/${id}/links`, {})).body.code).toBe('QUESTION_CLOSED');
});

test('actions are buttons, and of two answers through two links one counts', async () => {
  const { id } = await ask('buttons');
  const [first, second] = [await link(id), await link(id)];
  const page = await browse(first.url);
  for (const label of ['Approve', 'Reject', 'Escalate']) expect(page.text).toContain(`>${label}</button>`);
  expect(page.text).not.toContain('field.approve');
  expect(page.text).not.toMatch(/pause|resume/i);
  expect(await browse(first.url, { 'field.note': 'x' })).toMatchObject({ status: 400 });
  const both = await Promise.all([
    browse(first.url, { action: 'approve' }),
    browse(second.url, { action: 'reject', 'field.note': 'no' }),
  ]);
  expect(both.map(({ status }) => status).sort()).toEqual([200, 410]);
});

test('revoked, expired, canceled and unknown links have pages with the reason', async () => {
  const { job, id } = await ask('buttons');
  const [revoked, late, open] = [await link(id), await link(id, { expires_in_seconds: 60 }), await link(id)];
  expect((await call('DELETE', `/api/questions/${id}/links/${revoked.id}`)).status).toBe(204);
  expect(await browse(revoked.url)).toMatchObject({ status: 410, text: expect.stringContaining('withdrawn') });
  expect(await browse(revoked.url, { action: 'approve' })).toMatchObject({ status: 410 });
  const { db, schema } = context;
  await db.query(`update ${schema}.question_links set expires_at = now() where id = $1`, [late.id]);
  expect(await browse(late.url, { action: 'approve' })).toMatchObject({ status: 410 });
  expect(await browse(open.url)).toMatchObject({ status: 200 });
  const forged = `${open.url.slice(0, -2)}${open.url.endsWith('AA') ? 'BB' : 'AA'}`;
  for (const url of [forged, `${running.daemon.url}/q/short`, `${running.daemon.url}/q/${'A'.repeat(70)}`]) {
    expect([404, 429]).toContain((await browse(url)).status);
  }
  const hashes = await db.query<{ hash: Buffer }>(`select hash from ${schema}.question_links where id = $1`, [open.id]);
  expect(hashes[0]?.hash).toHaveLength(32);
  await call('POST', `/api/jobs/${job.id}/cancel`, {});
  expect(await browse(open.url)).toMatchObject({ status: 410, text: expect.stringContaining('no longer asked') });
  expect((await call('DELETE', `/api/questions/${id}/links/nothing`)).status).toBe(404);
});

test('a second visitor sees the first answer, but not through a revoked link', async () => {
  const { id } = await ask('buttons');
  const [first, second, withdrawn] = [await link(id, { recipient: 'ann' }), await link(id), await link(id)];
  await call('DELETE', `/api/questions/${id}/links/${withdrawn.id}`);
  const answers = await Promise.all([
    browse(first.url, { action: 'reject' }),
    browse(first.url, { action: 'approve' }),
    browse(first.url, { action: 'escalate' }),
  ]);
  expect(answers.map(({ status }) => status).toSorted()).toEqual([200, 410, 410]);
  const { body } = await call('GET', `/api/questions/${id}`);
  const { label } = body.actions.find(({ name }: { name: string }) => name === body.action);
  for (const { text } of [...answers.filter(({ status }) => status === 410), await browse(second.url)]) {
    expect(text).toContain(`The question was answered with “${label}” by ann on `);
  }
  const page = await browse(withdrawn.url);
  expect(page.text).toContain('It was withdrawn');
  expect(page.text).not.toContain('ann');
});

test('a link is no longer valid when the time of its question is over', async () => {
  const { job, id } = await ask('buttons');
  const { url } = await link(id, { expires_in_seconds: 86_400 });
  expect(await browse(url)).toMatchObject({ status: 200 });
  const { db, schema } = context;
  await db.transaction(async (tx) => {
    await tx.query(`update ${schema}.jobs set run_at = now() where id = $1`, [job.id]);
    await tx.query(`update ${schema}.phases set waits_until = now() where job_id = $1`, [job.id]);
    await tx.query(`update ${schema}.questions set expires_at = now() where id = $1`, [id]);
  });
  await queueDueJobs(db, schema, 'test');
  await eventually(async () => {
    expect(await browse(url)).toMatchObject({
      status: 410,
      text: expect.stringContaining('The time to answer was over'),
    });
  });
  expect(await browse(url, { action: 'approve' })).toMatchObject({ status: 410 });
});

test('hostile values are shown as text', async () => {
  const { job, id } = await ask('hostile');
  const { url } = await link(id);
  const page = await browse(url, { [`field.${hostile}`]: hostile, action: hostile });
  expect(page.status).toBe(400);
  for (const text of [page.text, (await browse(url)).text]) {
    expect(text).not.toContain('<script');
    expect(text).not.toContain('<img');
    expect(text).toContain('&#60;script&#62;');
  }
  const { body } = await call('GET', `/api/questions/${id}`);
  const form = { [`field.${hostile}`]: hostile, 'field.choice': hostile, action: body.actions[0].name };
  expect(await browse(url, form)).toMatchObject({ status: 200 });
  await eventually(async () =>
    expect((await reread(context, job)).result).toMatchObject({ [hostile]: hostile, choice: hostile }),
  );
});

test('the form of a caller without a valid link is not read', async () => {
  const headers = { 'content-type': 'application/x-www-form-urlencoded', 'content-length': '200000' };
  const request = { method: 'POST', path: `/q/${'C'.repeat(70)}`, headers, start: 'field.note=' };
  expect(await answerToUnfinished(running.daemon.url, request)).toMatch(/^HTTP\/1.1 4(04|29) /);
  const { id } = await ask('buttons');
  const { url } = await link(id);
  const tooLarge = await browse(url, { action: 'approve', 'field.note': 'x'.repeat(300_000) });
  expect(tooLarge.status).toBe(413);
  expect((await browse(url, { action: 'approve' })).status).toBe(200);
});

test('an address that tries many tokens is refused for a while', async () => {
  const tries = await Promise.all(
    Array.from({ length: 60 }, () => browse(`${running.daemon.url}/q/${'B'.repeat(70)}`)),
  );
  expect(tries.map(({ status }) => status)).toContain(429);
  expect(tries[0]?.text).toMatch(/not valid|Too many/);
  const { id } = await ask('buttons');
  expect((await browse((await link(id)).url)).status).toBe(200);
});
