// A job asks a person: over HTTP from the handler to SUCCESS, exactly one answer, and what each of timeout, default answer,
// pause, cancel, crash and reminder does to an open question.
import { beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { LeaseholdClient } from '../../../../server/client/client.ts';
import { queueDueJobs } from '../../../../server/jobs/finish/due-jobs.ts';
import { checkQuestion } from '../../../../server/jobs/questions/answer-schema.ts';
import { openQuestion } from '../../../../server/jobs/questions/ask.ts';
import { questionRequest } from '../../../../server/jobs/questions/question-request.ts';
import { parseDuration } from '../../../../server/kernel/clock.ts';
import { LeaseholdWorker } from '../../../../server/remote-worker/worker.ts';
import { scopes } from '../../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../../server/tenants/api-keys/key-store.ts';
import { defineJob } from '../../../../server/worker/handlers/define-job.ts';
import { useDaemon } from '../../../support/daemon/daemon.ts';
import { eventually } from '../../../support/eventually.ts';
import { addJob, claim, eventTypes, expireLease, finish, reread } from '../../../support/jobs.ts';
import { checkInvariants } from '../../../support/model/invariants.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const runs: string[] = [];
const approval = z.object({ approve: z.boolean(), note: z.string().max(100).optional() });

const handlers = [
  defineJob({
    type: 'approval',
    async run({ ask, job }) {
      runs.push(job.id);
      const answer = await ask({
        title: 'Deploy 1.4 to production?',
        context: { service: 'billing' },
        schema: approval,
        assignees: ['ann', 'bob'],
      });
      return answer.approve ? `yes: ${answer.note ?? ''}` : 'no';
    },
  }),
  defineJob({
    type: 'buttons',
    async run({ ask }) {
      const { action, note } = await ask({
        title: 'Refund?',
        schema: z.object({ approve: z.boolean(), note: z.string().default('none') }),
        actions: [
          { name: 'Approve', style: 'primary', answer: { approve: true } },
          { name: 'Reject', answer: { approve: false } },
        ],
        timeoutSeconds: 3600,
        onTimeout: { action: 'Reject' },
        reminders: [600, 1200],
        escalateTo: { assignees: ['boss'], afterSeconds: 1800 },
        assignees: ['ann'],
      });
      return `${action} ${note}`;
    },
  }),
  defineJob({
    type: 'strict',
    async run({ ask }) {
      const schema = z.object({ even: z.int().refine((n) => n % 2 === 0, 'must be even') });
      return (await ask({ title: 'A number?', schema })).even;
    },
  }),
  defineJob({
    type: 'both',
    async run({ ask }) {
      const schema = z.object({ ok: z.boolean() });
      const answers = await Promise.all([
        ask({ title: 'First?', schema, name: 'first' }),
        ask({ title: 'Second?', schema, name: 'second' }),
      ]);
      return answers.map(({ ok }) => ok);
    },
  }),
  defineJob({
    type: 'race',
    run: ({ ask, sleepFor }) =>
      Promise.race([
        ask({ title: 'Faster?', actions: ['Yes'] }).then(({ action }) => action),
        sleepFor('1d').then(() => 'slept'),
      ]),
  }),
  defineJob({
    type: 'asks-and-listens',
    run: ({ ask, waitForEvent, sleepFor }) =>
      Promise.all([
        ask({ title: 'Both?', actions: ['Yes'] }),
        waitForEvent('both.paid', { match: { invoice: 7 } }),
        sleepFor('9d'),
      ]),
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
  // biome-ignore lint/suspicious/noExplicitAny: as a client without types reads it.
  return { status: response.status, body: (await response.json()) as any };
}

async function ask(type: string, more: object = {}) {
  const { body: job } = await call('POST', '/api/jobs', { type, payload: {}, ...more });
  return waiting(job);
}

async function waiting(job: { id: string }) {
  return eventually(async () => {
    const found = await reread(context, job);
    expect(found.status).toBe('WAITING');
    const { body } = await call('GET', `/api/questions?job_id=${job.id}&status=open`);
    return { job: found, questions: body.questions, question: body.questions[0] };
  });
}

async function becomes(job: { id: string }, status: string) {
  return eventually(async () => {
    const found = await reread(context, job);
    expect(found.status).toBe(status);
    return found;
  });
}

/** As if so much time had passed. */
async function advance(job: { id: string }, duration: string): Promise<void> {
  const values = [job.id, parseDuration(duration)];
  const earlier = `$2::float8 * interval '1 millisecond'`;
  const { db, schema } = context;
  // At once: the daemon may find the job due at any moment.
  await db.transaction(async (tx) => {
    await tx.query(`select 1 from ${schema}.jobs where id = $1 for update`, [job.id]);
    await tx.query(`update ${schema}.phases set waits_until = waits_until - ${earlier} where job_id = $1`, values);
    await tx.query(
      `update ${schema}.questions set expires_at = expires_at - ${earlier}, escalate_at = escalate_at - ${earlier},
         remind_at = array(select r - ${earlier} from unnest(remind_at) as u(r)) where job_id = $1`,
      values,
    );
    await tx.query(`update ${schema}.jobs set run_at = run_at - ${earlier} where id = $1`, values);
  });
  await queueDueJobs(db, schema, 'test');
  running.daemon.signals.workAvailable(context.tenant);
}

test('a handler asks over HTTP, gets the answer and ends in SUCCESS', async () => {
  const { job, question } = await ask('approval', { target_id: 'billing', expires_in_seconds: 3600 });
  expect(job).toMatchObject({ leaseOwner: null, laneHead: true, attempt: 1, attemptFloor: 1 });
  expect(job.waiting).toMatchObject({ kind: 'question', step: 'question#1', question: question.id });
  expect(question).toMatchObject({
    job_id: job.id,
    target_id: 'billing',
    title: 'Deploy 1.4 to production?',
    context: { service: 'billing' },
    assignees: ['ann', 'bob'],
    status: 'open',
    schema: { type: 'object', required: ['approve'] },
  });
  expect(Date.parse(question.expires_at) - Date.parse(question.asked_at)).toBe(604_800_000);
  const { body: why } = await call('GET', `/api/jobs/${job.id}/why`);
  expect(why.reasons[0]).toMatchObject({ code: 'WAITING', release: { at: question.expires_at } });
  expect(why.reasons[0].detail).toContain(`"${question.title}"`);
  const { body: counts } = await call('GET', '/api/attention/count');
  expect(counts.questions).toBeGreaterThan(0);
  const { body: attention } = await call('GET', '/api/attention');
  expect(attention.questions.open).toBeGreaterThan(0);
  expect(attention.questions.newest).toContainEqual(question);
  expect(why.reasons[0].release.detail).toContain('the job fails with QUESTION_EXPIRED');
  expect(why.reasons[0].release.detail).toContain('This is the default time limit, QUESTION_TIMEOUT_SECONDS.');

  const bad = await call('POST', `/api/questions/${question.id}/answer`, { answer: { approve: 'maybe', other: 1 } });
  expect(bad).toMatchObject({ status: 400, body: { code: 'INVALID_FIELD', field: 'answer.approve' } });
  expect(bad.body.errors.map((e: { field: string }) => e.field)).toEqual(['answer.approve', 'answer.other']);

  const path = `/api/questions/${question.id}/answer`;
  const answer = { answer: { approve: true, note: 'go' }, author: 'ann' };
  expect(await call('POST', path, answer)).toMatchObject({
    status: 200,
    body: { status: 'answered', answer: { approve: true, note: 'go' }, answered_by: 'ann' },
  });
  expect(await call('POST', path, { answer: { approve: false } })).toMatchObject({
    status: 409,
    body: {
      code: 'QUESTION_CLOSED',
      detail: expect.stringMatching(/^The question was answered by ann at /),
      answer: { approve: true, note: 'go' },
      answered_by: 'ann',
    },
  });
  expect(await becomes(job, 'SUCCESS')).toMatchObject({ result: 'yes: go', attempt: 2, waiting: null });
  expect(runs.filter((id) => id === job.id)).toHaveLength(2);
  expect(await eventTypes(context, job)).toEqual([
    'job.enqueued',
    'job.started',
    'question.asked',
    'job.waiting',
    'question.answered',
    'job.woken',
    'job.started',
    'job.completed',
  ]);
  await checkInvariants(context);
});

test('exactly one of many concurrent answers counts', async () => {
  const { job, question } = await ask('approval');
  const answers = await Promise.all(
    Array.from({ length: 10 }, (_, n) =>
      call('POST', `/api/questions/${question.id}/answer`, {
        answer: { approve: true, note: String(n) },
        author: `p${n}`,
      }),
    ),
  );
  const [won] = answers.filter(({ status }) => status === 200);
  expect(answers.filter(({ status }) => status === 200)).toHaveLength(1);
  expect(answers.filter(({ status }) => status === 409).map(({ body }) => body.answered_by)).toEqual(
    Array(9).fill(won?.body.answered_by),
  );
  expect((await becomes(job, 'SUCCESS')).result).toBe(`yes: ${won?.body.answer.note}`);
  expect((await eventTypes(context, job)).filter((type) => type === 'question.answered')).toHaveLength(1);
});

test('lists filter by status, assignee, job and target, page by page', async () => {
  const first = await ask('approval', { target_id: 'list-1' });
  const second = await ask('approval', { target_id: 'list-2' });
  const page = await call('GET', '/api/questions?assignee=bob&status=open&limit=1');
  expect(page.body.questions[0].id).toBe(second.question.id);
  const next = await call('GET', `/api/questions?assignee=bob&status=open&limit=1&cursor=${page.body.next_cursor}`);
  expect(next.body.questions[0].id).toBe(first.question.id);
  expect((await call('GET', '/api/questions?assignee=zoe')).body.questions).toEqual([]);
  expect((await call('GET', '/api/questions?target_id=list-1')).body.questions).toHaveLength(1);
  expect((await call('GET', '/api/questions/none')).status).toBe(404);
  expect((await call('GET', '/api/questions?status=closed')).status).toBe(400);
});

test('actions: a button sets its fields, and an unknown one is refused', async () => {
  const { job, question } = await ask('buttons');
  const path = `/api/questions/${question.id}/answer`;
  expect(await call('POST', path, {})).toMatchObject({ status: 400, body: { field: 'action' } });
  expect(await call('POST', path, { action: 'Burn' })).toMatchObject({ status: 400, body: { field: 'action' } });
  expect((await call('POST', path, { action: 'Approve' })).body).toMatchObject({
    action: 'Approve',
    answer: { approve: true, note: 'none' },
  });
  expect((await becomes(job, 'SUCCESS')).result).toBe('Approve none');
});

test('reminders, then escalation, then the default answer, each once and without a run in between', async () => {
  const { job, question } = await ask('buttons');
  // The daemon may be the one that finds it due.
  const shows = (expected: object) =>
    eventually(async () => expect((await waiting(job)).question).toMatchObject(expected));
  await advance(job, '11m');
  await shows({ reminders: 1 });
  await advance(job, '10m');
  await shows({ reminders: 2, remind_at: [] });
  await advance(job, '10m');
  await shows({ reminders: 2, remind_at: [], assignees: ['boss'], escalate_at: null });
  expect((await reread(context, job)).attempt).toBe(1);
  await advance(job, '30m');
  expect((await becomes(job, 'SUCCESS')).result).toBe('Reject none');
  expect((await call('GET', `/api/questions/${question.id}`)).body).toMatchObject({
    status: 'expired',
    answer: { approve: false, note: 'none' },
    action: 'Reject',
    answered_by: null,
  });
  const types = (await eventTypes(context, job)).filter((type) => type.startsWith('question.'));
  expect(types).toEqual([
    'question.asked',
    'question.reminded',
    'question.reminded',
    'question.escalated',
    'question.expired',
  ]);
});

test('a timeout fails the job by default; a resume asks again', async () => {
  const { job, question } = await ask('approval', { target_id: 'late' });
  await advance(job, '8d');
  expect(await becomes(job, 'ERROR')).toMatchObject({ error: { code: 'QUESTION_EXPIRED' } });
  expect(await call('POST', `/api/questions/${question.id}/answer`, { answer: { approve: true } })).toMatchObject({
    status: 409,
    body: { question_status: 'expired' },
  });
  await call('POST', `/api/jobs/${job.id}/resume`, {});
  const again = await waiting(job);
  expect(again.question.id).not.toBe(question.id);
  await call('POST', `/api/questions/${again.question.id}/answer`, { answer: { approve: true } });
  await becomes(job, 'SUCCESS');
  await checkInvariants(context);
});

test('an answer that only the schema of the handler refuses fails the job; a resume asks again', async () => {
  const { job, question } = await ask('strict');
  await call('POST', `/api/questions/${question.id}/answer`, { answer: { even: 3 } });
  expect((await becomes(job, 'ERROR')).error).toMatchObject({ code: 'ANSWER_REFUSED' });
  await call('POST', `/api/jobs/${job.id}/resume`, {});
  const again = await waiting(job);
  await call('POST', `/api/questions/${again.question.id}/answer`, { answer: { even: 4 } });
  expect((await becomes(job, 'SUCCESS')).result).toBe(4);
});

test('pause keeps the question and stops its clock; its answer counts when the job is resumed', async () => {
  const { job, question } = await ask('approval');
  await call('POST', `/api/jobs/${job.id}/pause`, {});
  await context.db.query(
    `update ${context.schema}.jobs set held_since = held_since - interval '8 days' where id = $1`,
    [job.id],
  );
  await advance(job, '8d');
  await call('POST', `/api/jobs/${job.id}/resume`, {});
  const kept = await waiting(job);
  expect(kept.question.id).toBe(question.id);
  const movedMs = Date.parse(kept.question.expires_at) - Date.parse(question.expires_at);
  expect(movedMs).toBeGreaterThanOrEqual(0);
  await call('POST', `/api/jobs/${job.id}/pause`, {});
  expect((await call('POST', `/api/questions/${question.id}/answer`, { answer: { approve: false } })).status).toBe(200);
  expect((await reread(context, job)).status).toBe('PAUSED');
  await call('POST', `/api/jobs/${job.id}/resume`, {});
  expect((await becomes(job, 'SUCCESS')).result).toBe('no');
});

test.each(['cancel', 'resolve', 'skip'])('%s closes the question', async (action) => {
  const { job, question } = await ask('approval', { target_id: `close-${action}` });
  if (action !== 'cancel') await call('POST', `/api/jobs/${job.id}/pause`, {});
  expect((await call('POST', `/api/jobs/${job.id}/${action}`, {})).status).toBe(200);
  expect((await call('GET', `/api/questions/${question.id}`)).body.status).toBe('canceled');
  expect(await call('POST', `/api/questions/${question.id}/answer`, { answer: { approve: true } })).toMatchObject({
    status: 409,
    body: { question_status: 'canceled' },
  });
  expect(await eventTypes(context, job)).toContain('question.canceled');
});

test('of two open questions, each answer wakes the job, and the second completes it', async () => {
  const { job, questions } = await ask('both');
  expect(questions).toHaveLength(2);
  const [first, second] = ['first', 'second'].map((step) => questions.find((q: { step: string }) => q.step === step));
  await call('POST', `/api/questions/${first.id}/answer`, { answer: { ok: true } });
  const { questions: left } = await eventually(async () => {
    const now = await waiting(job);
    expect(now.job.attempt).toBe(2);
    return now;
  });
  expect(left.map((q: { id: string }) => q.id)).toEqual([second.id]);
  await call('POST', `/api/questions/${second.id}/answer`, { answer: { ok: false } });
  expect((await becomes(job, 'SUCCESS')).result).toEqual([true, false]);
});

test('a sleep that ends first completes the job and closes the question', async () => {
  const { job, question } = await ask('race');
  await advance(job, '25h');
  expect((await becomes(job, 'SUCCESS')).result).toBe('slept');
  expect((await call('GET', `/api/questions/${question.id}`)).body.status).toBe('canceled');
});

test('a crash between the question and the wait: the next attempt finds the same question', async () => {
  const added = await addJob(context, { type: 'lost', maxAttempts: 2 });
  const request = { title: 'Still there?', actions: [{ name: 'Yes' }], on_timeout: 'fail' } as const;
  const question = { ...checkQuestion(questionRequest.parse(request), { trusted: true }), timeout_seconds: 600 };
  const run = async () => {
    const job = await eventually(async () => {
      const found = (await claim(context, { types: ['lost'] })).jobs[0];
      expect(found).toBeDefined();
      return found!;
    });
    const held = { jobId: job.id, leaseId: job.leaseId! };
    const call = { name: 'question#1', position: 0, parallel: false };
    return { job, held, state: await openQuestion(context.db, context.schema, held, call, question, 'worker:w1') };
  };
  const first = await run();
  await expireLease(context, first.held.leaseId);
  const second = await run();
  expect(second.state).toMatchObject({
    status: 'open',
    questionId: (first.state as { questionId: string }).questionId,
  });
  // An answer before the suspension is written: the job wakes at once.
  const { questionId, until } = second.state as { questionId: string; until: string };
  await call('POST', `/api/questions/${questionId}/answer`, { action: 'Yes' });
  const waiting = { kind: 'question', step: 'question#1', until, question: questionId } as const;
  await finish(context, second.job, { kind: 'suspend', waiting, leftMs: 1, awaited: { steps: ['question#1'], until } });
  await queueDueJobs(context.db, context.schema, 'test');
  await becomes(added, 'QUEUED');
  await call('POST', `/api/jobs/${added.id}/cancel`, {});
});

test('a remote worker asks, the job waits without its lease, and the next claim gets the answer', async () => {
  const client = new LeaseholdClient({ url: running.daemon.url, apiKey: key });
  await call('POST', '/api/scheduler/jobs/submit', { addon_id: 'far', job_type: 'far.job', payload: {} });
  const seen: string[] = [];
  const worker = new LeaseholdWorker(
    { url: running.daemon.url, key, queue: 'far' },
    async ({ ask: askPerson, leaseId }) => {
      seen.push(leaseId);
      const answer = await askPerson({
        name: 'size',
        title: 'Which size?',
        schema: { type: 'object', properties: { size: { type: 'integer', minimum: 1 } }, required: ['size'] },
        actions: [{ name: 'Go', style: 'primary' }],
      });
      return `${answer.action} ${answer.size}`;
    },
  );
  const working = worker.run();
  const [question] = await eventually(async () => {
    const found = await client.questions.list({ status: 'open' }).take(50);
    const own = found.filter(({ title }) => title === 'Which size?');
    expect(own).toHaveLength(1);
    expect((await reread(context, { id: own[0]!.job_id })).status).toBe('WAITING');
    return own;
  });
  expect(await client.questions.get(question!.id)).toMatchObject({ step: 'size', status: 'open' });
  await expect(client.questions.answer(question!.id, { action: 'Go', answer: { size: 0 } })).rejects.toMatchObject({
    status: 400,
  });
  await client.questions.answer(question!.id, { action: 'Go', answer: { size: 3 }, author: 'ann' });
  const done = await becomes({ id: question!.job_id }, 'SUCCESS');
  expect(done).toMatchObject({ result: 'Go 3', attempt: 2 });
  expect(new Set(seen).size).toBe(2);
  worker.drain();
  await working;
});

test('a schema of a remote worker may not have patterns or references', () => {
  const refused = (schema: object) => () =>
    checkQuestion(questionRequest.parse({ title: 't', schema }), { trusted: false });
  const pattern = { type: 'object', properties: { a: { type: 'string', pattern: '(a+)+$' } } };
  expect(refused(pattern)).toThrow('schema.properties.a.pattern');
  expect(refused({ type: 'object', properties: { a: { $ref: '#' } } })).toThrow('$ref');
  expect(refused({ type: 'string' })).toThrow('schema.type');
  expect(refused({ type: 'object', properties: { pattern: { type: 'string' } } })).not.toThrow();
});

test('`why` of a held job says what it still waits for, and that of the job behind offers to answer', async () => {
  const { job, question } = await ask('asks-and-listens', { target_id: 'both' });
  const behind = (await call('POST', '/api/jobs', { type: 'approval', payload: {}, target_id: 'both' })).body;
  const why = async (id: string) => (await call('GET', `/api/jobs/${id}/why`)).body.reasons;
  const answer = { action: 'answer', method: 'POST', path: `/api/questions/${question.id}/answer` };
  const [ahead] = await why(behind.id);
  expect(ahead).toMatchObject({ code: 'BEHIND_JOB', job_id: job.id });
  expect(ahead.release.actions.map(({ action }: { action: string }) => action)).toContain('cancel');

  await call('POST', `/api/jobs/${job.id}/pause`, { reason: 'lunch' });
  const reasons = await why(job.id);
  expect(reasons).toMatchObject([
    { code: 'HELD' },
    {
      code: 'WAITING',
      detail: expect.stringMatching(/^After its resume the job waits for a person to answer "Both\?".*stands still/),
      release: { actions: [answer] },
    },
    {
      code: 'WAITING',
      detail: expect.stringContaining('for the event "both.paid" with {"invoice":7} without a time limit'),
      release: { at: null, actions: [{ action: 'send', path: '/api/events/both.paid' }] },
    },
    { code: 'WAITING', detail: expect.stringContaining('the job sleeps in "sleep#1" until'), release: { actions: [] } },
  ]);
  expect((await call('POST', answer.path, { action: 'Yes' })).status).toBe(200);
  expect((await why(job.id)).map(({ code }: { code: string }) => code)).toEqual(['HELD', 'WAITING', 'WAITING']);
  await call('POST', `/api/jobs/${job.id}/cancel`, {});

  const asked = await ask('approval', { target_id: 'alone' });
  const next = (await call('POST', '/api/jobs', { type: 'approval', payload: {}, target_id: 'alone' })).body;
  const [first] = await why(next.id);
  expect(first.release).toMatchObject({
    detail: expect.stringContaining('A person answers its question.'),
    actions: [{ action: 'answer', path: `/api/questions/${asked.question.id}/answer` }, { action: 'cancel' }],
  });
});
