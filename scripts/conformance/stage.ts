// Where one check is played: a queue of its own, a proxy, the outside world, and one worker process.
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { Effects } from './effects.ts';
import { type Exchange, FaultProxy } from './proxy.ts';

export interface StageOptions {
  url: string;
  key: string;
  /** What starts the worker: program and arguments. */
  command: readonly string[];
}

/** What the check asks of the worker, told through its environment. */
export interface Settings {
  ttlSeconds: number;
  concurrency: number;
}

export class CheckFailed extends Error {}

interface JobView {
  job_id: string;
  state: string;
  attempts: number;
  claimed_by: string | null;
  lease_id: string | null;
}

// Generous: what is slow to start is not wrong.
export const maxWaitMs = 60_000;

/** Between two checks of what this process knows, and between two reads from the server. */
const checkEveryMs = 25;
const readEveryMs = 150;

export class Stage {
  readonly proxy: FaultProxy;
  readonly effects = new Effects();
  readonly queue: string;
  #options: StageOptions;
  #settings: Settings;
  #worker: ChildProcess | undefined;
  #exit: { code: number | null } | undefined;
  #stderr = '';

  private constructor(options: StageOptions, name: string, settings: Settings) {
    this.#options = options;
    this.#settings = settings;
    this.queue = `conformance-${name}-${randomBytes(4).toString('hex')}`;
    this.proxy = new FaultProxy(options.url);
  }

  static async open(options: StageOptions, name: string, settings: Settings): Promise<Stage> {
    const stage = new Stage(options, name, settings);
    await stage.proxy.open();
    await stage.effects.open();
    stage.#startWorker();
    return stage;
  }

  async close(): Promise<void> {
    await this.#killWorker();
    await this.proxy.cut();
    await this.effects.close();
    // Nothing that was submitted here is left to run.
    const { jobs } = (await this.#api('GET', `/jobs?addon_id=${this.queue}&limit=200`)) as { jobs: JobView[] };
    for (const job of jobs) {
      if (!['DONE', 'CANCELED'].includes(job.state)) await this.cancel(job.job_id).catch(() => {});
    }
  }

  /** As a supervisor does after a crash. */
  async restartWorker(): Promise<void> {
    await this.#killWorker();
    this.#exit = undefined;
    this.#startWorker();
  }

  async #killWorker(): Promise<void> {
    const worker = this.#worker;
    if (!worker || this.#exit !== undefined) return;
    const gone = new Promise((resolve) => worker.once('exit', resolve));
    worker.kill('SIGKILL');
    await gone;
  }

  signal(name: 'SIGTERM'): void {
    this.#worker?.kill(name);
  }

  /** Undefined while it runs. */
  get exit(): { code: number | null } | undefined {
    return this.#exit;
  }

  submit(seconds: number): Promise<string> {
    return this.#submit({ seconds });
  }

  /** For workers with durable calls; a lost lease is followed by another attempt. */
  submitSteps(steps: number, sleepSeconds: number): Promise<string> {
    return this.#submit({ steps, sleep_seconds: sleepSeconds }, { max_attempts: 3 });
  }

  async #submit(payload: object, options: object = {}): Promise<string> {
    const answer = (await this.#api('POST', '/jobs/submit', {
      addon_id: this.queue,
      job_type: 'conformance',
      payload: { ...payload, effects_url: this.effects.url },
      ...options,
    })) as { job: JobView };
    return answer.job.job_id;
  }

  async cancel(jobId: string): Promise<void> {
    await this.#api('POST', `/jobs/${jobId}/cancel`, { reason: 'conformance' });
  }

  async read(jobId: string): Promise<JobView> {
    return ((await this.#api('GET', `/jobs/${jobId}`)) as { job: JobView }).job;
  }

  /** What the worker released the job with; null while it has not ended. */
  async result(jobId: string): Promise<{ receipts?: unknown } | null> {
    const { result } = (await this.#api('GET', `/jobs/${jobId}`)) as { result: { result_data: object | null } | null };
    return result?.result_data ?? null;
  }

  async eventTypes(jobId: string): Promise<string[]> {
    const { events } = (await this.#api('GET', `/jobs/${jobId}/events?limit=200`, undefined, '/api')) as {
      events: { type: string }[];
    };
    return events.map(({ type }) => type);
  }

  /** Sends once more, past the proxy, what the worker sent; the status of the answer. */
  async repeat({ path, body }: Exchange): Promise<number> {
    const headers = { authorization: `Bearer ${this.#options.key}`, 'content-type': 'application/json' };
    const init = { method: 'POST', headers, body: JSON.stringify(body) };
    return (await fetch(this.#options.url.replace(/\/$/, '') + path, init)).status;
  }

  async leaseState(leaseId: string): Promise<string> {
    return ((await this.#api('GET', `/lease/${leaseId}`)) as { lease: { state: string } }).lease.state;
  }

  /** Until the worker leaves its first trace of the job. */
  async working(jobId: string): Promise<void> {
    await this.until(() => this.effects.of(jobId).length > 0, maxWaitMs, `the worker did not start job ${jobId}`);
  }

  async ended(jobId: string, states: readonly string[], ms: number, otherwise: string): Promise<void> {
    await this.until(
      async () => {
        // What has exited will not end it any more; what it did before counts.
        const exited = this.#exit !== undefined;
        const done = states.includes((await this.read(jobId)).state);
        if (exited && !done) throw this.failed(otherwise);
        return done;
      },
      ms,
      otherwise,
      readEveryMs,
    );
  }

  async until(
    check: () => boolean | Promise<boolean>,
    ms: number,
    otherwise: string,
    intervalMs = checkEveryMs,
  ): Promise<void> {
    const deadline = performance.now() + ms;
    while (!(await check())) {
      if (performance.now() > deadline) throw this.failed(otherwise);
      await wait(intervalMs);
    }
  }

  failed(message: string): CheckFailed {
    const lastLines = this.#stderr.trim().split('\n').slice(-3).join(' | ');
    const exit = this.#exit ? `; the worker exited with ${this.#exit.code}` : '';
    return new CheckFailed(`${message}${exit}${lastLines ? ` (its last lines: ${lastLines})` : ''}`);
  }

  #startWorker(): void {
    const settings = this.#settings;
    const [program = '', ...args] = this.#options.command;
    const env = {
      ...process.env,
      LEASEHOLD_URL: this.proxy.url,
      LEASEHOLD_KEY: this.#options.key,
      LEASEHOLD_QUEUE: this.queue,
      LEASEHOLD_TTL_SEC: String(settings.ttlSeconds),
      LEASEHOLD_CONCURRENCY: String(settings.concurrency),
      LEASEHOLD_DRAIN_SEC: '10',
    };
    const worker = spawn(program, args, { env, stdio: ['ignore', 'ignore', 'pipe'] });
    worker.stderr.on('data', (chunk: Buffer) => {
      this.#stderr = (this.#stderr + chunk.toString()).slice(-4000);
    });
    worker.on('error', (error) => {
      this.#stderr += error.message;
      this.#exit ??= { code: null };
    });
    worker.on('exit', (code) => {
      this.#exit = { code };
    });
    this.#worker = worker;
  }

  async #api(method: string, path: string, body?: object, base = '/api/scheduler'): Promise<unknown> {
    const headers = { authorization: `Bearer ${this.#options.key}`, 'content-type': 'application/json' };
    const init = { method, headers, ...(body && { body: JSON.stringify(body) }) };
    const url = `${this.#options.url.replace(/\/$/, '')}${base}${path}`;
    let response = await fetch(url, init);
    // A busy server may be too late to read; nothing has happened then.
    for (let i = 0; i < 3 && [408, 429, 503].includes(response.status); i++) {
      await wait(500);
      response = await fetch(url, init);
    }
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path} answered ${response.status}: ${text.slice(0, 300)}`);
    return text === '' ? undefined : JSON.parse(text);
  }
}

export function wait(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, Math.max(0, ms)));
}
