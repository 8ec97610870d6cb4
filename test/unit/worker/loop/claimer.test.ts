// When a tenant's loop claims, and how many claims it has under way.
import { describe, expect, test } from 'vitest';
import type { Claimed, NamedClaim } from '../../../../server/jobs/claim/claim.ts';
import { Claimer } from '../../../../server/worker/loop/claimer.ts';
import type { LostClaims } from '../../../../server/worker/loop/lost-claims.ts';

interface Sent {
  request: NamedClaim;
  /** With so many jobs. */
  answer(jobs: number): Promise<void>;
  fail(error: Error): Promise<void>;
}

function setUp(room = () => 10) {
  const sent: Sent[] = [];
  const told = { noRoom: 0, failed: [] as number[], lost: [] as string[], claimed: [] as number[], due: 0 };
  let number = 0;
  const settled = () => new Promise<void>((resolve) => setImmediate(resolve));
  const claims = new Claimer({
    lost: { disown: async () => {}, add: (leaseId: string) => void told.lost.push(leaseId) } as unknown as LostClaims,
    next: () => {
      const limit = room();
      return limit === 0 ? undefined : { leaseId: `lease${++number}`, owner: 'w', limit, leaseSeconds: 15 };
    },
    send: (request) =>
      new Promise<Claimed>((resolve, reject) => {
        sent.push({
          request,
          answer: (jobs) => {
            resolve({ leaseId: request.leaseId, jobs: Array.from({ length: jobs }, () => ({})) as Claimed['jobs'] });
            return settled();
          },
          fail: (error) => {
            reject(error);
            return settled();
          },
        });
      }),
    onClaimed: ({ jobs }) => void told.claimed.push(jobs.length),
    onFailed: (_error, retryInMs) => void told.failed.push(retryInMs),
    onNoRoom: () => {
      told.noRoom += 1;
    },
    onDue: () => {
      told.due += 1;
    },
  });
  const send = () => {
    claims.send();
    return settled();
  };
  return {
    claims,
    sent,
    told,
    send,
    wake() {
      claims.wake();
      return send();
    },
  };
}

test('nothing is claimed before somebody says that there may be something', async () => {
  const { claims, sent, wake } = setUp();
  claims.send();
  expect(sent).toEqual([]);
  await wake();
  expect(sent).toHaveLength(1);
  expect(claims).toMatchObject({ busy: true, asked: 10, mayBeMore: false, nothingWaits: false });
});

describe('one at a time', () => {
  test('while nothing is known of a line', async () => {
    const { sent, wake } = setUp();
    await wake();
    await wake();
    expect(sent).toHaveLength(1);
  });

  test('a claim that came out short ends it, and nothing waits then', async () => {
    const { claims, sent, wake, told } = setUp();
    await wake();
    await sent[0]!.answer(9);
    expect(sent).toHaveLength(1);
    expect(claims).toMatchObject({ busy: false, asked: 0, mayBeMore: false, nothingWaits: true });
    expect(told.claimed).toEqual([9]);
  });

  test('what was announced while a claim was under way is looked for behind it', async () => {
    const { claims, sent, wake } = setUp();
    await wake();
    await wake();
    await sent[0]!.answer(0);
    expect(sent).toHaveLength(2);
    await sent[1]!.answer(0);
    expect(sent).toHaveLength(2);
    expect(claims.isDrained).toBe(true);
  });
});

describe('two at a time', () => {
  test('once a claim took all that it asked for, and no more than two', async () => {
    const { claims, sent, wake } = setUp();
    await wake();
    await sent[0]!.answer(10);
    expect(sent).toHaveLength(3);
    expect(claims).toMatchObject({ asked: 20, mayBeMore: true, nothingWaits: false });
    await wake();
    expect(sent).toHaveLength(3);
    await sent[1]!.answer(10);
    expect(sent).toHaveLength(4);
  });

  test('until one comes out short', async () => {
    const { claims, sent, wake } = setUp();
    await wake();
    await sent[0]!.answer(10);
    await sent[2]!.answer(3);
    expect(sent).toHaveLength(3);
    expect(claims).toMatchObject({ busy: true, asked: 10, mayBeMore: false });
    await sent[1]!.answer(0);
    expect(claims).toMatchObject({ busy: false, asked: 0, nothingWaits: true });
    expect(sent).toHaveLength(3);
  });

  test('a full one behind a short one goes on', async () => {
    const { claims, sent, wake } = setUp();
    await wake();
    await sent[0]!.answer(10);
    await sent[2]!.answer(3);
    await sent[1]!.answer(10);
    expect(sent).toHaveLength(5);
    expect(claims.requested).toBe(20);
  });
});

test('a short answer to a claim that was sent before a full one came does not end the line', async () => {
  let room = 10;
  const { claims, sent, wake, told } = setUp(() => room);
  await wake();
  await sent[0]!.answer(10);
  room = 0;
  await sent[1]!.answer(10);
  await sent[2]!.answer(0);
  expect(claims).toMatchObject({ busy: false, mayBeMore: true, nothingWaits: false });
  expect(told.noRoom).toBe(1);
});

describe('without room', () => {
  test('it is said that something waits', async () => {
    let room = 0;
    const { claims, sent, wake, told } = setUp(() => room);
    await wake();
    expect(sent).toEqual([]);
    expect(told.noRoom).toBe(1);
    expect(claims).toMatchObject({ mayBeMore: true, nothingWaits: false });
    room = 5;
    claims.send();
    expect(claims.requested).toBe(10);
  });

  test('beside a claim under way it is not: its answer makes room', async () => {
    let room = 5;
    const { sent, wake, told } = setUp(() => room);
    await wake();
    room = 0;
    await sent[0]!.answer(5);
    expect(told.noRoom).toBe(1);
    room = 5;
    await wake();
    room = 0;
    await wake();
    expect(told.noRoom).toBe(1);
  });
});

describe('a claim that fails', () => {
  test('is remembered as lost and tried again later, not at once', async () => {
    const { claims, sent, send, wake, told } = setUp();
    await wake();
    await sent[0]!.fail(new Error('connection lost'));
    expect(told).toMatchObject({ lost: ['lease1'], claimed: [] });
    expect(told.failed).toHaveLength(1);
    expect(told.failed[0]).toBeGreaterThan(0);
    expect(sent).toHaveLength(1);
    expect(claims).toMatchObject({ busy: false, asked: 0, nothingWaits: false });
    await expect.poll(() => told.due, { timeout: 5000 }).toBe(1);
    await send();
    expect(sent).toHaveLength(2);
    await sent[1]!.answer(0);
    expect(claims.isDrained).toBe(true);
  });
});

test('stopped, it waits for the answers and sends no more', async () => {
  const { claims, sent, wake, told } = setUp();
  await wake();
  await sent[0]!.answer(10);
  let stopped = false;
  const stopping = claims.stop().then(() => {
    stopped = true;
  });
  await sent[1]!.answer(10);
  expect(stopped).toBe(false);
  await sent[2]!.answer(10);
  await stopping;
  expect(told.claimed).toEqual([10, 10, 10]);
  await wake();
  expect(sent).toHaveLength(3);
});
