import { beforeEach, expect, it } from 'vitest';
import type { Database } from '../../../../server/database/database.ts';
import { SharedReads } from '../../../../server/jobs/read/shared-reads.ts';
import { newId } from '../../../../server/kernel/ids.ts';
import { addJob, claim } from '../../../support/jobs.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();
const sent: unknown[][] = [];
/** Holds back or fails the next statement. */
let before: (() => Promise<void>) | undefined;

const db = {
  query: async (text: string, values: unknown[]) => {
    sent.push(values);
    const wait = before;
    before = undefined;
    await wait?.();
    return context.db.query(text, values);
  },
} as unknown as Database;

beforeEach(() => {
  sent.length = 0;
  before = undefined;
});

function reader() {
  return { db, schema: context.schema, withTurn: <T>(work: () => Promise<T>) => work() };
}

it('reads jobs that are requested together with one statement', async () => {
  const reads = new SharedReads();
  const [first, second] = [await addJob(context), await addJob(context, { type: 'leased' })];
  await claim(context, { types: ['leased'] });
  const found = await Promise.all([first, second, first].map(({ id }) => reads.find(id, reader())));
  expect(found.map((job) => job?.id)).toEqual([first.id, second.id, first.id]);
  expect(sent).toEqual([[[first.id, second.id]]]);
  const alone = await reads.find(second.id, reader());
  expect(alone?.leaseExpiresAt).toEqual(expect.any(String));
  expect(found[1]).toEqual(alone);
});

it('reads a large job alone, and returns nothing for unknown jobs', async () => {
  const reads = new SharedReads();
  const small = await addJob(context);
  const large = await addJob(context, { payload: { text: 'x'.repeat(20_000) } });
  const ids = [small.id, large.id, newId()];
  const found = await Promise.all(ids.map((id) => reads.find(id, reader())));
  expect(found.map((job) => job?.payload)).toEqual([small.payload, large.payload, undefined]);
  expect(sent.map(([ids]) => ids)).toEqual([ids, large.id, ids[2]]);
});

it('does not answer a read with a statement that was sent before it', async () => {
  const reads = new SharedReads();
  const job = await addJob(context);
  let release = () => {};
  const sentFirst = new Promise<void>((resolve) => {
    before = () => {
      resolve();
      return new Promise((go) => {
        release = go;
      });
    };
  });
  const first = reads.find(job.id, reader());
  await sentFirst;
  const second = reads.find(job.id, reader());
  expect(second).not.toBe(first);
  release();
  await Promise.all([first, second]);
  expect(sent).toHaveLength(2);
});

it('fails the reads of a failed statement, and no later ones', async () => {
  const reads = new SharedReads();
  const jobs = [await addJob(context), await addJob(context)];
  before = () => Promise.reject(new Error('the database is gone'));
  const found = await Promise.allSettled(jobs.map(({ id }) => reads.find(id, reader())));
  expect(found.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  expect((await reads.find(jobs[0]?.id ?? '', reader()))?.id).toBe(jobs[0]?.id);
});
