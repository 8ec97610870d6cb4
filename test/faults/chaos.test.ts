// Several daemons under load while processes are killed, stopped and restarted, connections cut and people
// interfere, at random. Short in `npm test`; LEASEHOLD_TEST_MINUTES makes it long (npm run test:faults).
import { expect, test } from 'vitest';
import { resolveJob, resumeJob } from '../../server/jobs/actions/resume.ts';
import { cancelJob, pauseJob } from '../../server/jobs/actions/stop.ts';
import { checkEffects, useEffects } from '../support/daemon/effects.ts';
import { type DaemonProcess, startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { checkInvariants } from '../support/model/invariants.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();
const minutes = Number(process.env.LEASEHOLD_TEST_MINUTES ?? 0);
// The short run makes the same choices every time; a long one tries others.
const seed = Number(process.env.LEASEHOLD_TEST_SEED ?? (minutes > 0 ? Date.now() % 2 ** 31 : 20261117));
const runMs = minutes > 0 ? minutes * 60_000 : 8_000;
const names = minutes > 0 ? ['one', 'two', 'three'] : ['one', 'two'];

test(
  'whatever happens to processes and connections, every acknowledged job ends once and in order',
  async () => {
    console.log(`LEASEHOLD_TEST_SEED=${seed}`);
    const random = generator(seed);
    const pick = <T>(all: readonly T[]): T => all[Math.floor(random() * all.length)] as T;
    const effects = await useEffects();
    const env = { ...effects.env, LEASE_SECONDS: '4', SHUTDOWN_GRACE_PERIOD_SECONDS: '2' };
    const daemons = new Map<string, DaemonProcess>();
    for (const name of names) daemons.set(name, await startProcess(context, { name, env }));
    const acknowledged: string[] = [];
    const until = performance.now() + runMs;
    const isOn = () => performance.now() < until;

    const load = async () => {
      const requests: Promise<void>[] = [];
      for (let n = 0; isOn(); n++) {
        const body = {
          type: 'work',
          payload: { ms: pick([0, 50, 300]) },
          max_attempts: 5,
          client_request_id: `c-${n}`,
        };
        const request = pick([...daemons.values()])
          .request('POST', `/api/targets/lane-${n % 5}/jobs`, body)
          .then((answer) => void (answer.status === 201 && acknowledged.push(answer.body.id)))
          .catch(() => {});
        requests.push(request);
        // One that stands still answers later, or never: the others have work meanwhile.
        await Promise.race([request, pause(500)]);
        await pause(30);
      }
      await Promise.all(requests);
    };
    const restart = async (name: string, signal: NodeJS.Signals) => {
      const daemon = daemons.get(name) as DaemonProcess;
      daemon.kill(signal);
      await daemon.exited;
      daemons.set(name, await startProcess(context, { name, env }));
    };
    const faults: (() => Promise<unknown>)[] = [
      () => restart(pick(names), 'SIGKILL'),
      () => restart(pick(names), 'SIGTERM'),
      async () => {
        const daemon = daemons.get(pick(names)) as DaemonProcess;
        daemon.kill('SIGSTOP');
        await pause(6_000);
        daemon.kill('SIGCONT');
      },
      () =>
        context.db.query(
          `select pg_terminate_backend(pid) from pg_stat_activity
          where datname = current_database() and application_name like 'leasehold%' and pid <> pg_backend_pid() and random() < 0.5`,
        ),
    ];
    const people = async () => {
      while (isOn()) {
        const jobId = acknowledged.at(-1 - Math.floor(random() * 20));
        const act = pick([pauseJob, cancelJob, resumeJob]);
        // A refusal is an answer, and so is a connection that a fault cut.
        if (jobId !== undefined) await act(context.db, context.schema, { jobId, actor: 'user:ann' }).catch(() => {});
        await releaseHolds().catch(() => {});
        await pause(100);
      }
    };
    const chaos = async () => {
      while (isOn()) await pick(faults)().catch(() => {});
    };
    await Promise.all([load(), people(), chaos()]);

    // The fault is gone: everything that can run drains (I10).
    expect(acknowledged.length).toBeGreaterThan(0);
    await eventually(
      async () => {
        await releaseHolds();
        const rows = await context.db.query<{ id: string }>(
          `select id from ${context.schema}.jobs where status in ('SUCCESS', 'CANCELED')`,
        );
        const ended = new Set(rows.map((row) => row.id));
        expect(acknowledged.filter((id) => !ended.has(id))).toEqual([]);
      },
      { timeoutMs: 90_000, everyMs: 300 },
    );
    checkEffects(effects.read());
    await checkInvariants(context);
  },
  runMs + 240_000,
);

/** Somebody looks after what was interrupted or has failed. */
async function releaseHolds(): Promise<void> {
  const { db, schema } = context;
  const held = await db.query<{ id: string; attempt: number }>(
    `select id, attempt from ${schema}.jobs where status in ('PAUSED', 'ERROR')`,
  );
  for (const { id, attempt } of held) {
    const request = { jobId: id, actor: 'user:ann' };
    if (attempt > 3) await resolveJob(db, schema, { ...request, result: null });
    else await resumeJob(db, schema, request);
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Mulberry32: the same choices for the same seed, as far as the timing of processes allows. */
function generator(start: number): () => number {
  let state = start;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
