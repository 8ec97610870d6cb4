// How often the gate of limits runs: each run costs the database some milliseconds of CPU, also if it opens nothing.
import { expect, test } from 'vitest';
import { enqueue } from '../../../../server/jobs/enqueue/enqueue.ts';
import { limitKeysOf } from '../../../../server/jobs/limits/limit-keys.ts';
import { createLogger } from '../../../../server/kernel/logger.ts';
import { LimitGate } from '../../../../server/worker/loop/limit-gate.ts';
import { useTenant } from '../../../support/postgres/database.ts';

const context = useTenant();

test('while its runs open nothing the gate follows wake-ups less often, and again at once when one opened a job', async () => {
  const { db, schema } = context;
  const limits = [{ name: 'rare', source: 'settings' as const, type: 'limited', rate: 1, per: 'day' as const }];
  const enqueued: number[] = [];
  const gate = new LimitGate(
    { ...context.tenant, limits },
    {
      db,
      logger: createLogger('silent'),
      handlers: { types: () => ['limited'] },
      metrics: { limitedOpened: { add: (_slug: string, count: number) => enqueued.push(count) } } as never,
    },
  );
  const run = async () => {
    const ran = await gate.run(10);
    return { ...ran, pauseMs: gate.runInMs() ?? 0 };
  };
  const pauses: number[] = [];
  for (let n = 0; n < 5; n++) pauses.push((await run()).pauseMs);
  // The time since the run is subtracted from each.
  expect(pauses[0]).toBeLessThanOrEqual(40);
  expect(pauses[4]).toBeGreaterThan(40);
  expect(pauses[4]).toBeLessThanOrEqual(160);
  // A run without room asks nobody, and changes nothing.
  expect(await gate.run(0)).toMatchObject({ opened: 0 });

  const given = { type: 'limited', payload: {} };
  const limited = { ...given, limitKeys: limitKeysOf(limits, given) };
  await enqueue(db, schema, [limited, limited], 'test');
  const opening = await run();
  expect(opening).toMatchObject({ opened: 1 });
  expect(opening.pauseMs).toBeLessThanOrEqual(20);
  expect(enqueued).toEqual([1]);
  // The next token comes tomorrow, whatever the pause is.
  expect((await run()).nextMs).toBeGreaterThan(3_600_000);
});
