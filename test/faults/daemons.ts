// The daemons of a run: real processes, each behind a proxy of its own for every database server, started again under
// their names after they ended.
import { fileURLToPath } from 'node:url';
import { type DaemonProcess, launchProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import type { TenantContext } from '../support/postgres/database.ts';
import { FaultProxy } from '../support/postgres/proxies/fault-proxy.ts';
import { machineMs, type RunLog } from './run-log.ts';

export interface DaemonRecord {
  name: string;
  event: 'started' | 'exited' | 'signal';
  at: number;
  /** Wall clock, to compare with the database's events. */
  time: number;
  signal?: string | null;
  code?: number | null;
  /** The harness ended it. */
  expected?: boolean;
  pid?: number | undefined;
}

export interface DaemonSettings {
  env?: Record<string, string>;
  /** Milliseconds by which its clock is wrong. */
  clockShiftMs?: number;
}

const shiftClock = fileURLToPath(new URL('shift-clock.mjs', import.meta.url));

export class TestDaemon {
  readonly name: string;
  /** One for each database server, in the order of the servers. */
  readonly proxies: readonly FaultProxy[];
  readonly #context: Pick<TenantContext, 'db' | 'url' | 'tenant'>;
  readonly #log: RunLog;
  readonly #env: Record<string, string>;
  #process: DaemonProcess | undefined;
  #url = 'http://127.0.0.1:1';
  #expected = false;
  #outputs: string[] = [];
  clockShiftMs: number;

  private constructor(
    name: string,
    proxies: readonly FaultProxy[],
    context: Pick<TenantContext, 'db' | 'url' | 'tenant'>,
    log: RunLog,
    { env = {}, clockShiftMs = 0 }: DaemonSettings,
  ) {
    this.name = name;
    this.proxies = proxies;
    this.#context = context;
    this.#log = log;
    this.#env = env;
    this.clockShiftMs = clockShiftMs;
  }

  static async create(
    name: string,
    context: Pick<TenantContext, 'db' | 'url' | 'tenant'>,
    ports: readonly number[],
    log: RunLog,
    settings: DaemonSettings,
  ): Promise<TestDaemon> {
    const proxies = await Promise.all(ports.map((port) => FaultProxy.start(port)));
    const hosts = proxies.map((proxy) => `127.0.0.1:${proxy.port}`).join(',');
    const url = context.url.replace(/@[^/]*/, `@${hosts}`);
    return new TestDaemon(name, proxies, { ...context, url }, log, settings);
  }

  /** The proxy to the first server. */
  get proxy(): FaultProxy {
    return this.proxies[0] as FaultProxy;
  }

  get url(): string {
    return this.#url;
  }

  get process(): DaemonProcess {
    if (this.#process === undefined) throw new Error(`${this.name} was not started`);
    return this.#process;
  }

  /** The output of all its processes. */
  get output(): string {
    return [...this.#outputs, this.#process?.output() ?? ''].join('');
  }

  /** Starts it without waiting until it is ready. */
  async launch(): Promise<void> {
    const shift = this.clockShiftMs;
    const env: Record<string, string> = {
      ...this.#env,
      ...(shift !== 0 && { CLOCK_SHIFT_MS: String(shift), NODE_OPTIONS: `--import=${shiftClock}` }),
    };
    // Its key is stored in the database, which may just restart.
    const daemon = await eventually(() => launchProcess(this.#context, { name: this.name, env }));
    if (this.#process !== undefined) this.#outputs.push(this.#process.output());
    this.#process = daemon;
    this.#url = daemon.url;
    this.#expected = false;
    this.#record({ event: 'started', pid: daemon.child.pid });
    void daemon.exited.then(({ code, signal }) =>
      this.#record({ event: 'exited', code, signal, expected: this.#expected }),
    );
  }

  async start(): Promise<this> {
    await this.launch();
    await this.process.ready();
    return this;
  }

  signal(signal: NodeJS.Signals): void {
    if (signal === 'SIGKILL' || signal === 'SIGTERM') this.#expected = true;
    this.#record({ event: 'signal', signal });
    this.process.kill(signal);
  }

  async end(signal: 'SIGKILL' | 'SIGTERM'): Promise<void> {
    this.signal(signal);
    await this.process.exited;
  }

  /** The run is over: from now on its end is no violation. */
  mayEnd(): void {
    this.#expected = true;
  }

  async stop(): Promise<void> {
    if (this.#process !== undefined) await this.end('SIGKILL');
    await Promise.all(this.proxies.map((proxy) => proxy.stop()));
  }

  #record(record: Pick<DaemonRecord, 'event'> & Partial<DaemonRecord>): void {
    const line: DaemonRecord = { name: this.name, at: machineMs(), time: Date.now(), ...record };
    this.#log.append('daemons.jsonl', line);
  }
}
