// Measures how long work stands still after a fault, with the default settings of the product: from the fault to the
// moment at which another daemon runs the job, or acknowledges an enqueue.
import { loadavg } from 'node:os';
import { expect } from 'vitest';
import { loadConfig } from '../../server/kernel/config.ts';
import { eventually } from '../support/eventually.ts';
import type { Effect } from '../support/model/effects.ts';
import type { TestDaemon } from './daemons.ts';
import { machineMs } from './run-log.ts';
import type { World } from './world.ts';

export interface Recovery {
  name: string;
  ms: number[];
}

const defaults = loadConfig({});
/** The tests' settings are faster. */
export const productSettings: Record<string, string> = {
  HEARTBEAT_INTERVAL_SECONDS: String(defaults.heartbeatIntervalSeconds),
  LEASE_SECONDS: String(defaults.leaseSeconds),
  STALE_LEASE_GRACE_SECONDS: String(defaults.staleLeaseGraceSeconds),
  SWEEP_INTERVAL_SECONDS: String(defaults.sweepIntervalSeconds),
  POLL_INTERVAL_SECONDS: String(defaults.pollIntervalSeconds),
};

const jobsPerRound = 10;

/** The fault hits the daemon that runs more of the jobs; all of these must begin again elsewhere. */
async function measureJobs(
  world: World,
  round: string,
  inject: (daemon: TestDaemon) => void,
  repair: (daemon: TestDaemon) => Promise<unknown>,
): Promise<number[]> {
  const gate = world.gate(round);
  await world.addJobs(
    Array.from({ length: jobsPerRound }, (_, n) => ({
      type: 'work',
      targetId: `${round}-${n}`,
      payload: { until: gate.until, stepMs: 500 },
      maxAttempts: 5,
    })),
  );
  const begins = () => world.effects('begin').filter(({ target }) => target?.startsWith(`${round}-`));
  await eventually(() => expect(begins()).toHaveLength(jobsPerRound));
  const share = (daemon: TestDaemon) => begins().filter(({ pid }) => pid === daemon.process.child.pid);
  const [hit] = world.daemons.toSorted((a, b) => share(b).length - share(a).length) as [TestDaemon];
  const lost = share(hit);
  const at = machineMs();
  const faultAt = Date.now();
  inject(hit);
  await eventually(() => expect(begins()).toHaveLength(jobsPerRound + lost.length), { timeoutMs: 120_000 });
  const again = begins().slice(jobsPerRound);
  await logTimeline(world, round, { at, faultAt, lost, again });
  await repair(hit);
  gate.open();
  await eventually(() => expect(world.effects('end').length).toBeGreaterThan(0));
  return again.map((effect) => effect.at - at);
}

/**
 * Where the time went, in milliseconds since the fault and by the database's clock: the last renewal, the end of the lease,
 * the events of recovery and start, and the begin of the handler.
 */
async function logTimeline(
  world: World,
  round: string,
  { at, faultAt, lost, again }: { at: number; faultAt: number; lost: Effect[]; again: Effect[] },
): Promise<void> {
  const { schema } = world.first;
  const since = (time: string) => `round(extract(epoch from ${time}) * 1000 - $2)::int`;
  const leases = await world.context.db.query<{ id: string; renewed: number; expires: number }>(
    `select id, ${since('last_heartbeat_at')} as renewed, ${since('expires_at')} as expires
       from ${schema}.leases where id = any($1)`,
    [lost.map(({ lease }) => lease), faultAt],
  );
  const events = await world.context.db.query<{ job_id: string; type: string; at: number }>(
    `select job_id, type, ${since('at')} as at
       from ${schema}.events where job_id = any($1) and at > to_timestamp($2 / 1000.0) order by xid, seq`,
    [lost.map(({ job }) => job), faultAt],
  );
  for (const { job, lease } of lost) {
    const begun = again.find((effect) => effect.job === job);
    world.log.append('timeline.jsonl', {
      round,
      job,
      ...leases.find(({ id }) => id === lease),
      events: events.filter(({ job_id }) => job_id === job).map(({ type, at }) => `${type} ${at}`),
      begun: begun === undefined ? null : Math.round(begun.at - at),
      load: loadavg()[0],
    });
  }
}

export async function measureCrash(world: World, rounds: number): Promise<Recovery> {
  const ms: number[] = [];
  for (let round = 0; round < rounds; round++) {
    const kill = (daemon: TestDaemon) => daemon.signal('SIGKILL');
    ms.push(...(await measureJobs(world, `crash-${round}`, kill, (daemon) => daemon.start())));
  }
  return { name: 'crash of a daemon, until its jobs run on another', ms };
}

export async function measurePartition(world: World, rounds: number): Promise<Recovery> {
  const ms: number[] = [];
  for (let round = 0; round < rounds; round++) {
    const cutOff = (daemon: TestDaemon) => daemon.proxy.blackHole();
    const heal = async (daemon: TestDaemon) => {
      await daemon.proxy.heal();
      await daemon.process.ready();
    };
    ms.push(...(await measureJobs(world, `partition-${round}`, cutOff, heal)));
  }
  return { name: 'daemon cut off from the database, until its jobs run on another', ms };
}

/** The standby is promoted as soon as the primary has stopped: what a tool needs to notice is not part of it. */
export async function measureFailover(world: World): Promise<[acknowledged: number, begun: number]> {
  const moved = { promoted: Promise.resolve(false) };
  await new Promise<void>((resolve) => {
    moved.promoted = world.failOver({ onHalted: resolve });
  });
  const at = machineMs();
  const acknowledged = await eventually(async () => {
    const operation = await world.enqueue({ target: 'after' });
    expect(operation.outcome).toBe('ok');
    return operation;
  });
  await moved.promoted;
  await eventually(() => expect(world.effects('begin').map(({ job }) => job)).toContain(acknowledged.job));
  const begun = world.effects('begin').find(({ job }) => job === acknowledged.job);
  return [acknowledged.endedAt - at, (begun?.at ?? Number.NaN) - at];
}

/** A row for docs/guarantees.md. */
export function describeRecovery({ name, ms }: Recovery): string {
  const sorted = ms.toSorted((a, b) => a - b);
  const at = (share: number) =>
    ((sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN) / 1000).toFixed(1);
  return `| ${name} | ${at(0.5)} s | ${at(0.99)} s | ${ms.length} |`;
}
