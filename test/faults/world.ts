// Everything of one run: a database server (and a standby), two tenants, daemons behind proxies, readers of streams, and
// the logs that the checker reads.
import { writeFileSync } from 'node:fs';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import type { Schema } from '../../server/database/identifiers.ts';
import type { NewJob } from '../../server/jobs/enqueue/enqueue.ts';
import { scopes } from '../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../server/tenants/api-keys/key-store.ts';
import type { Tenant } from '../../server/tenants/tenant.ts';
import { eventually } from '../support/eventually.ts';
import { addJobs } from '../support/jobs.ts';
import type { Effect } from '../support/model/effects.ts';
import { addTenant, type TenantContext } from '../support/postgres/database.ts';
import type { CrashableServer } from '../support/postgres/postmaster.ts';
import { type Standby, startStandby } from '../support/postgres/standby.ts';
import { type DaemonSettings, TestDaemon } from './daemons.ts';
import { type Operation, operate } from './load/operations.ts';
import { StreamFollower } from './load/stream.ts';
import { Choices } from './random.ts';
import { machineMs, RunLog } from './run-log.ts';

export interface TestTenant {
  tenant: Tenant;
  schema: Schema;
  apiKey: string;
  stream: StreamFollower | undefined;
  /** Jobs that were acknowledged, in order. */
  acknowledged: string[];
  /** Keys of events that were acknowledged after their job. */
  signaled: Set<string>;
  /** Queues whose jobs an acknowledged operation cancels. */
  canceledQueues: Set<string>;
}

export interface WorldOptions {
  /** The database, reached without a proxy. */
  context: TenantContext;
  /** The ports of its servers on this machine, each of which gets proxies. */
  ports?: number[];
  /** Its own primary and the standby that follows it synchronously. */
  servers?: { primary: CrashableServer; standby: Standby };
  seed: number;
}

export interface JobRequest {
  type?: string;
  target?: string | undefined;
  payload?: object;
  maxAttempts?: number;
  key?: string;
  webhookUrl?: string;
  /** Of remote workers. */
  queue?: string;
  /** A job of the same tenant. */
  after?: string;
  uniqueKey?: string;
  /** Of the job itself, by unit. */
  budget?: Record<string, number>;
}

/** Short leases, so that a run sees many of them end. */
const faultSettings = { LEASE_SECONDS: '4', SHUTDOWN_GRACE_PERIOD_SECONDS: '2' };

export class World {
  readonly context: TenantContext;
  readonly choices: Choices;
  readonly log: RunLog;
  readonly tenants: TestTenant[] = [];
  readonly daemons: TestDaemon[] = [];
  /** Where some jobs of the load send webhooks. */
  webhookUrl: string | undefined;
  readonly #ports: number[];
  #primary: CrashableServer | undefined;
  #standby: Standby | undefined;
  /** The port of the primary that was lost; its next standby gets it. */
  #freePort: number | undefined;

  private constructor(options: WorldOptions, directory: string) {
    // A context may be given to the next test of its file, with another tenant.
    this.context = { ...options.context };
    this.#primary = options.servers?.primary;
    this.#standby = options.servers?.standby;
    this.#ports = options.ports ?? [Number(new URL(options.context.url).port)];
    this.choices = new Choices(options.seed);
    this.log = new RunLog(directory);
  }

  static async create(options: WorldOptions): Promise<World> {
    const parent = process.env.LEASEHOLD_FAULTS_DIRECTORY ?? tmpdir();
    await mkdir(parent, { recursive: true });
    const directory = await mkdtemp(join(parent, 'leasehold-faults-'));
    const world = new World(options, directory);
    onTestFinished(async ({ task }) => {
      await Promise.all(world.tenants.map(({ stream }) => stream?.stop()));
      await Promise.all(world.daemons.map((daemon) => daemon.stop()));
      const keep = task.result?.state === 'fail' || process.env.LEASEHOLD_FAULTS_DIRECTORY !== undefined;
      if (!keep) await rm(directory, { recursive: true, force: true });
      else console.error(`The logs of the run: ${directory}`);
    });
    await mkdir(join(directory, 'gates'));
    const { db, tenant, schema } = options.context;
    for (const one of [{ tenant, schema }, await addTenant(db)]) {
      const { text } = await createApiKey(db, { tenantId: one.tenant.id, name: 'faults', scopes: [...scopes] });
      const known = { acknowledged: [], signaled: new Set<string>(), canceledQueues: new Set<string>() };
      world.tenants.push({ ...one, apiKey: text, stream: undefined, ...known });
    }
    return world;
  }

  get first(): TestTenant {
    return this.tenants[0] as TestTenant;
  }

  async addDaemon(name: string, { env, ...settings }: DaemonSettings = {}): Promise<TestDaemon> {
    const daemon = await this.createDaemon(name, { env: { ...env }, ...settings });
    return daemon.start();
  }

  async createDaemon(name: string, { env, ...settings }: DaemonSettings = {}): Promise<TestDaemon> {
    const daemon = await TestDaemon.create(name, this.context, this.#ports, this.log, {
      ...settings,
      env: { ...faultSettings, EFFECTS_FILE: this.log.path('effects.jsonl'), ...env },
    });
    this.daemons.push(daemon);
    return daemon;
  }

  /** Reads the streams of all tenants from now on. */
  async follow(): Promise<void> {
    for (const [index, tenant] of this.tenants.entries()) {
      const stream = new StreamFollower(this.log, `stream-${index}.jsonl`, tenant.apiKey, () =>
        this.choices.pick(this.daemons),
      );
      tenant.stream = stream;
      await eventually(() => {
        if (!stream.isLive) throw new Error('the stream is not open');
      });
    }
  }

  async enqueue(job: JobRequest, { tenant = this.first, daemon = this.anyDaemon() } = {}): Promise<Operation> {
    const {
      type = 'work',
      target,
      payload = {},
      maxAttempts = 1,
      key,
      webhookUrl,
      queue,
      after,
      uniqueKey,
      budget,
    } = job;
    const operation = await operate(this.log, {
      name: 'enqueue',
      daemon,
      tenant: tenant.tenant.slug,
      apiKey: tenant.apiKey,
      method: 'POST',
      path: target === undefined ? '/api/jobs' : `/api/targets/${target}/jobs`,
      body: {
        type,
        payload,
        max_attempts: maxAttempts,
        ...(key !== undefined && { client_request_id: key }),
        ...(webhookUrl !== undefined && { webhook_url: webhookUrl }),
        ...(queue !== undefined && { queue }),
        ...(after !== undefined && { after: [{ job: after, on_failure: 'continue' }] }),
        ...(uniqueKey !== undefined && { unique: { key: uniqueKey } }),
        ...(budget !== undefined && { budget }),
      },
      ...(after !== undefined && { after }),
      ...(target !== undefined && { target }),
      ...(key !== undefined && { key }),
      read: ({ id }) => (id === undefined ? {} : { job: id }),
    });
    if (operation.outcome === 'ok' && operation.job !== undefined) tenant.acknowledged.push(operation.job);
    return operation;
  }

  /** Enqueues all of them in one transaction, without a daemon. */
  async addJobs(jobs: Partial<NewJob>[]): Promise<string[]> {
    const { schema, tenant, acknowledged } = this.first;
    const added = await addJobs({ db: this.context.db, schema }, jobs);
    for (const { id } of added) {
      const at = machineMs();
      const times = { startedAt: at, endedAt: at };
      const operation: Operation = {
        name: 'enqueue',
        tenant: tenant.slug,
        daemon: '',
        ...times,
        outcome: 'ok',
        job: id,
      };
      this.log.append('operations.jsonl', operation);
      acknowledged.push(id);
    }
    return added.map(({ id }) => id);
  }

  /** What handlers have logged so far. */
  effects(kind: Effect['kind']): Effect[] {
    return this.log.read<Effect>('effects.jsonl').filter((effect) => effect.kind === kind);
  }

  act(
    name: 'cancel' | 'pause' | 'resume' | 'resolve',
    job: string,
    { tenant = this.first, daemon = this.anyDaemon() } = {},
  ): Promise<Operation> {
    const path = `/api/jobs/${job}/${name}`;
    const request = { daemon, tenant: tenant.tenant.slug, apiKey: tenant.apiKey, method: 'POST' as const };
    return operate(this.log, { ...request, name, job, path, body: name === 'resolve' ? { result: null } : {} });
  }

  /** Tries to read a job with the key of another tenant. */
  readForeign(job: string, { tenant, apiKey }: TestTenant): Promise<Operation> {
    const request = { name: 'foreignRead' as const, daemon: this.anyDaemon(), tenant: tenant.slug, apiKey };
    return operate(this.log, { ...request, method: 'GET', path: `/api/jobs/${job}`, job });
  }

  anyDaemon(): TestDaemon {
    return this.choices.pick(this.daemons);
  }

  note(fault: string, detail: object = {}): void {
    this.log.append('faults.jsonl', { fault, ...detail, at: machineMs(), time: Date.now() });
  }

  pause(ms: number): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, ms));
  }

  /** A file for which handlers wait, as `until` of their payload. */
  gate(name: string): { until: string; open(): void } {
    const until = join(this.log.directory, 'gates', name);
    return { until, open: () => writeFileSync(until, '') };
  }

  /** Whether the run has database servers of its own, which it may crash. */
  get hasServers(): boolean {
    return this.#primary !== undefined;
  }

  /** The primary, to halt and restart it. */
  get primary(): CrashableServer {
    if (this.#primary === undefined) throw new Error('the run has no server of its own');
    return this.#primary;
  }

  /** Of a single server, for connections that do not follow a failover. */
  get primaryUrl(): string {
    return this.#primary?.url ?? this.context.url;
  }

  /** The old primary is gone, the standby accepts writes. False if there is no standby. */
  async failOver({ onHalted = () => {} } = {}): Promise<boolean> {
    const [primary, standby] = [this.#primary, this.#standby];
    if (primary === undefined || standby === undefined) return false;
    this.#standby = undefined;
    await primary.halt();
    onHalted();
    this.#freePort = primary.port;
    this.#primary = standby;
    await standby.promote();
    return true;
  }

  /** After a failover: a new standby, where the old primary was. */
  async addStandby(): Promise<void> {
    if (this.#standby !== undefined || this.#freePort === undefined) return;
    this.#standby = await startStandby(this.primary, { synchronous: true, port: this.#freePort });
  }

  /** No fault is left: everything passes, every process runs. */
  async heal(): Promise<void> {
    for (const daemon of this.daemons) {
      daemon.signal('SIGCONT');
      for (const proxy of daemon.proxies) await proxy.heal();
    }
    this.note('healed');
  }
}
