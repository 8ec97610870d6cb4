import { expect, test } from 'vitest';
import { type JsonPart, parseBytes } from '../../../../server/http/request/body.ts';
import { toNewJob } from '../../../../server/jobs/enqueue/job-request.ts';
import { nextTurnIfLarge } from '../../../../server/kernel/clock.ts';

const large = { list: Array.from({ length: 20_000 }, (_, n) => `value ${n}`) };
const small = { list: ['value'] };

/** Turns of the event loop in which others could run while `work` was under way. */
async function turnsOf(work: () => Promise<unknown>): Promise<number> {
  let turns = 0;
  let isOver = false;
  const count = () => {
    turns += 1;
    if (!isOver) setImmediate(count);
  };
  setImmediate(count);
  await work();
  isOver = true;
  return turns;
}

/** Of several runs the fewest: a pause of the whole process can end the time slice of any one of them. */
async function fewestTurnsOf(work: () => Promise<unknown>): Promise<number> {
  let fewest = Number.POSITIVE_INFINITY;
  for (let run = 0; run < 20 && fewest > 0; run++) fewest = Math.min(fewest, await turnsOf(work));
  return fewest;
}

test('a large body is parsed in another turn than the one in which its request is served', async () => {
  expect(await turnsOf(() => parseBytes(Buffer.from(JSON.stringify(large)), {}))).toBeGreaterThan(0);
  expect(await fewestTurnsOf(() => parseBytes(Buffer.from(JSON.stringify(small)), {}))).toBe(0);
});

test('a large payload is hashed in another turn than the one in which it is checked', async () => {
  const jobTypes = { has: () => true, checkPayload: (_: string, payload: unknown) => ({ ok: true, payload }) };
  const context = {
    tenant: { settings: {}, limits: [] },
    jobTypes: { ...jobTypes, defaults: () => ({}) },
    liveDaemons: async () => [],
  };
  const make = (payload: object) => () =>
    toNewJob({ type: 't', payload, client_request_id: 'c' } as never, context as never);
  expect(await turnsOf(make(large))).toBeGreaterThan(0);
  expect(await fewestTurnsOf(make(small))).toBe(0);
});

test('a document is large from 64 KiB on', async () => {
  expect(await turnsOf(() => nextTurnIfLarge(65_536))).toBeGreaterThan(0);
  expect(await turnsOf(() => nextTurnIfLarge(65_535))).toBe(0);
});

test('the elements of a list are parsed when they are read, a large one in a separate turn', async () => {
  const jobs = [large, small, { list: ['\u0000'] }, [1, { deep: '"]}' }]];
  const body = (await parseBytes(Buffer.from(JSON.stringify({ jobs, atomic: true })), {
    partLimitBytes: 1_000_000,
  })) as { jobs: JsonPart[]; atomic: boolean };
  expect(body.atomic).toBe(true);
  const [first, second, third, fourth] = body.jobs as [JsonPart, JsonPart, JsonPart, JsonPart];
  let value: unknown;
  expect(await turnsOf(async () => (value = await first.read()))).toBeGreaterThanOrEqual(2);
  expect(value).toEqual(large);
  expect(await second.read()).toEqual(small);
  await expect(third.read()).rejects.toMatchObject({ code: 'INVALID_FIELD', extra: { field: 'list[0]' } });
  expect(await fourth.read()).toEqual(jobs[3]);
});

test('a list element that is not JSON is a problem of the whole body', async () => {
  const body = (await parseBytes(Buffer.from('{"jobs":[{"a":1},{"a":nope}]}'), { partLimitBytes: 1_000_000 })) as {
    jobs: JsonPart[];
  };
  expect(await body.jobs[0]?.read()).toEqual({ a: 1 });
  await expect(body.jobs[1]?.read()).rejects.toMatchObject({ code: 'INVALID_JSON' });
});
