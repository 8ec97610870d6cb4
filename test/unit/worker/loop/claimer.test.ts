// When a tenant's loop claims, and how many claims it has under way.
import { describe, expect, test } from 'vitest';
import type { Database } from '../../../../server/database/database.ts';
import type { Claimed, NamedClaim } from '../../../../server/jobs/claim/claim.ts';
import type { Tenant } from '../../../../server/tenants/tenant.ts';
import { Claimer } from '../../../../server/worker/loop/claimer.ts';

interface Sent {
  request: NamedClaim;
  /** With so many jobs. */
  answer(jobs: number): Promise<void>;
  fail(error: Error): Promise<void>;
}

/** Plays the part of the loop: sends while claims may be sent and there is room. */
function setUp(room = () => 10) {
  const sent: Sent[] = [];
  const seen = { noRoom: 0, failed: [] as number[], claimed: [] as number[] };
  const flushed = () => new Promise<void>((resolve) => setImmediate(resolve));
  const claims = new Claimer({
    db: {} as Database,
    config: { workerId: 'w', leaseSeconds: 15 },
    handlers: { types: () => ['demo.echo'] },
    sendClaim: (_tenant, request) =>
      new Promise<Claimed>((resolve, reject) => {
        sent.push({
          request,
          answer: (jobs) => {
            resolve({ leaseId: request.leaseId, jobs: Array.from({ length: jobs }, () => ({})) as Claimed['jobs'] });
            return flushed();
          },
          fail: (error) => {
            reject(error);
            return flushed();
          },
        });
      }),
  });
  const tenant = { slug: 'acme', schema: '"acme"', settings: {} } as unknown as Tenant;
  const claim = async (limit: number) => {
    const answer = await claims.next(tenant, limit);
    if (answer.kind === 'claimed') seen.claimed.push(answer.claimed.jobs.length);
    else seen.failed.push(answer.retryInMs);
    if (answer.kind === 'claimed') sendAll();
  };
  const sendAll = () => {
    while (claims.maySend) {
      const limit = room();
      if (limit > 0) {
        void claim(limit);
        continue;
      }
      if (claims.isBusy) return;
      claims.setFull();
      seen.noRoom += 1;
      return;
    }
  };
  const send = () => {
    sendAll();
    return flushed();
  };
  return {
    claims,
    sent,
    seen,
    send,
    wake() {
      claims.wake();
      return send();
    },
  };
}

test('nothing is claimed before the first wake-up', async () => {
  const { claims, sent, send, wake } = setUp();
  await send();
  expect(sent).toEqual([]);
  await wake();
  expect(sent).toHaveLength(1);
  expect(claims).toMatchObject({ isBusy: true, requested: 10, mayHaveWork: false, isDrained: false });
});

describe('one claim at a time', () => {
  test('before the first full claim', async () => {
    const { sent, wake } = setUp();
    await wake();
    await wake();
    expect(sent).toHaveLength(1);
  });

  test('after a short claim, which drains the backlog', async () => {
    const { claims, sent, wake, seen } = setUp();
    await wake();
    await sent[0]!.answer(9);
    expect(sent).toHaveLength(1);
    expect(claims).toMatchObject({ isBusy: false, requested: 0, mayHaveWork: false, isDrained: true });
    expect(seen.claimed).toEqual([9]);
  });

  test('a wake-up during a claim leads to another claim', async () => {
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

describe('two claims at a time', () => {
  test('after a full claim, and never more than two', async () => {
    const { claims, sent, wake } = setUp();
    await wake();
    await sent[0]!.answer(10);
    expect(sent).toHaveLength(3);
    expect(claims).toMatchObject({ requested: 20, mayHaveWork: true, isDrained: false });
    await wake();
    expect(sent).toHaveLength(3);
    await sent[1]!.answer(10);
    expect(sent).toHaveLength(4);
  });

  test('until one comes back short', async () => {
    const { claims, sent, wake } = setUp();
    await wake();
    await sent[0]!.answer(10);
    await sent[2]!.answer(3);
    expect(sent).toHaveLength(3);
    expect(claims).toMatchObject({ isBusy: true, requested: 10, mayHaveWork: false });
    await sent[1]!.answer(0);
    expect(claims).toMatchObject({ isBusy: false, requested: 0, isDrained: true });
    expect(sent).toHaveLength(3);
  });

  test('a full claim after a short one continues', async () => {
    const { claims, sent, wake } = setUp();
    await wake();
    await sent[0]!.answer(10);
    await sent[2]!.answer(3);
    await sent[1]!.answer(10);
    expect(sent).toHaveLength(5);
    expect(claims.requested).toBe(20);
  });
});

test('a short answer to a claim that was sent before a full one came back does not end the claims', async () => {
  let room = 10;
  const { claims, sent, wake, seen } = setUp(() => room);
  await wake();
  await sent[0]!.answer(10);
  room = 0;
  await sent[1]!.answer(10);
  await sent[2]!.answer(0);
  expect(claims).toMatchObject({ isBusy: false, mayHaveWork: true, isDrained: false });
  expect(seen.noRoom).toBe(1);
});

describe('without room', () => {
  test('the claimer remembers that work waits', async () => {
    let room = 0;
    const { claims, sent, send, wake, seen } = setUp(() => room);
    await wake();
    expect(sent).toEqual([]);
    expect(seen.noRoom).toBe(1);
    expect(claims).toMatchObject({ mayHaveWork: true, isDrained: false });
    room = 5;
    void send();
    expect(claims.requested).toBe(10);
  });

  test('the answer of a claim in flight makes room first', async () => {
    let room = 5;
    const { sent, wake, seen } = setUp(() => room);
    await wake();
    room = 0;
    await sent[0]!.answer(5);
    expect(seen.noRoom).toBe(1);
    room = 5;
    await wake();
    room = 0;
    await wake();
    expect(seen.noRoom).toBe(1);
  });
});

test('a claim that fails is retried after a delay', async () => {
  const { claims, sent, send, wake, seen } = setUp();
  await wake();
  await sent[0]!.fail(new Error('refused'));
  expect(seen).toMatchObject({ claimed: [] });
  expect(seen.failed).toHaveLength(1);
  expect(seen.failed[0]).toBeGreaterThan(0);
  await send();
  expect(sent).toHaveLength(1);
  expect(claims).toMatchObject({ isBusy: false, requested: 0, isDrained: false });
  await wake();
  expect(sent).toHaveLength(2);
  await sent[1]!.answer(0);
  expect(claims.isDrained).toBe(true);
});
