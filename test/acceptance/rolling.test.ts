// A rolling restart under load: every job that was acknowledged ends, once, in order, and a drain costs nothing.
import { expect, test } from 'vitest';
import { checkEffects, useEffects } from '../support/daemon/effects.ts';
import { type DaemonProcess, startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { checkInvariants } from '../support/model/invariants.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();

test('no acknowledged job is lost while daemons restart', async () => {
  const effects = await useEffects();
  const env = { ...effects.env, SHUTDOWN_GRACE_PERIOD_SECONDS: '60' };
  const daemons: DaemonProcess[] = await Promise.all([
    startProcess(context, { name: 'blue', env }),
    startProcess(context, { name: 'green', env }),
  ]);
  const acknowledged: string[] = [];
  let stopped = false;
  const load = (async () => {
    for (let n = 0; !stopped; n++) {
      const body = { type: 'work', payload: { ms: 50 }, client_request_id: `load-${n}` };
      // Whoever answers: a client asks another when one is gone.
      for (const daemon of daemons) {
        const answer = await daemon.request('POST', `/api/targets/lane-${n % 4}/jobs`, body).catch(() => undefined);
        if (answer?.status !== 201 && answer?.status !== 200) continue;
        acknowledged.push(answer.body.id);
        break;
      }
    }
  })();
  for (const [place, name] of ['blue', 'green'].entries()) {
    const before = acknowledged.length;
    await eventually(() => expect(acknowledged.length).toBeGreaterThan(before + 5));
    daemons[place]?.kill('SIGTERM');
    expect(await daemons[place]?.exited).toEqual({ code: 0, signal: null });
    daemons[place] = await startProcess(context, { name, env });
  }
  stopped = true;
  await load;
  expect(acknowledged.length).toBeGreaterThan(10);
  await eventually(
    async () => {
      const rows = await context.db.query<{ id: string }>(
        `select id from ${context.schema}.jobs where status = 'SUCCESS' and attempt = 1`,
      );
      const done = new Set(rows.map((row) => row.id));
      expect(acknowledged.filter((id) => !done.has(id))).toEqual([]);
    },
    { timeoutMs: 90_000, everyMs: 200 },
  );
  checkEffects(effects.read());
  await checkInvariants(context);
}, 300_000);
