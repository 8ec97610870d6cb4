// Every setting of the product: its environment name, default, bounds and one line of doc.
// `.env.example` and docs/configuration.md are tested against this table.
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { maxSeconds } from './limits.ts';
import { flag, httpUrl, integer, number, oneOf, postgresUrl, type Setting, secretKey, text } from './setting-types.ts';

const settings = {
  HOST: text('127.0.0.1', 'Address the HTTP server listens on.'),
  PORT: integer(8080, 0, 65535, 'Port of the HTTP server; 0 picks a free one.'),
  PUBLIC_URL: httpUrl(
    'Address under which people reach this daemon, for links to questions. Empty: the address of the request that creates a link.',
  ),
  DATABASE_URL: postgresUrl(
    'Postgres to use; with several hosts, the one that accepts writes. Empty: an embedded Postgres is started, with its data in DATA_DIR.',
  ),
  LISTEN_DATABASE_URL: postgresUrl(
    'Direct connection for LISTEN when DATABASE_URL goes through PgBouncer. Empty: DATABASE_URL.',
  ),
  DATABASE_POOL_MAX: integer(10, 2, 1000, 'Maximum connections in the main pool of one daemon.'),
  DATABASE_TENANT_SHARE: number(
    0.5,
    0.01,
    1,
    'Share of the connections for requests that one tenant may use at once while this daemon serves others.',
  ),
  DATA_DIR: text('.leasehold', 'Where the embedded Postgres keeps its data.'),
  LOG_LEVEL: oneOf(['info', 'fatal', 'error', 'warn', 'debug', 'trace', 'silent'], 'Minimum level of log lines.'),
  ADMIN_API_KEY: secretKey('A bootstrap admin key. Empty: one is created at the first start and printed once.'),
  HANDLERS: text('', 'Module, or directory of modules, with your job handlers. Empty: the demo handlers.'),
  DEMO_TENANT: oneOf(
    ['auto', 'always', 'never'],
    'Whether a tenant "demo" with a key is created at start; auto: only with the embedded Postgres.',
  ),
  WORKER_ID: text('', 'Name of this daemon in leases and logs. Empty: host, pid and a random part.'),
  WORKER_CONCURRENCY: integer(256, 0, 100_000, 'Jobs that one daemon runs at once, over all tenants; 0 runs none.'),
  TENANT_CONCURRENCY: integer(200, 1, 100_000, 'Jobs that one daemon runs at once for one tenant.'),
  WORKER_RESERVED_SHARE: number(
    0.125,
    0,
    0.5,
    'Share of WORKER_CONCURRENCY, rounded up, that is kept free for the first job of tenants that run nothing; never more than there are such tenants.',
  ),
  HEARTBEAT_INTERVAL_SECONDS: number(2, 0.05, 3600, 'Time between lease renewals.'),
  LEASE_SECONDS: number(15, 0.2, 86_400, 'Time until a lease expires without a renewal.'),
  STALE_LEASE_GRACE_SECONDS: number(
    5,
    0,
    86_400,
    'How long the sweeper waits after the expiry of a lease before it recovers the jobs.',
  ),
  SWEEP_INTERVAL_SECONDS: number(5, 0.05, 3600, 'Time between two passes of the sweeper.'),
  POLL_INTERVAL_SECONDS: number(
    5,
    0.05,
    3600,
    'Time between two polls for work that no notification announced. Idle tenants are left out.',
  ),
  LOOP_STALL_SECONDS: number(
    60,
    0.2,
    86_400,
    'A daemon whose event loop is blocked for longer stops renewing its leases.',
  ),
  CLAIM_SECONDS: number(60, 0.2, 3600, 'How long a remote worker may hold a claim before it requests a lease.'),
  CLAIM_WAITERS_MAX: integer(10_000, 0, 1_000_000, 'Claims of remote workers that wait for work at one daemon.'),
  CLAIM_WAITERS_PER_TENANT: integer(5000, 1, 1_000_000, 'Claims of one tenant that wait for work at one daemon.'),
  CLAIM_WAITERS_PER_KEY: integer(2500, 1, 1_000_000, 'Claims with one API key that wait for work at one daemon.'),
  JOB_TIMEOUT_SECONDS: number(
    7200,
    0,
    31_536_000,
    'Maximum time of one attempt, after which it fails with TIMEOUT; 0 means no limit. The tenant, the type and the job may set their own.',
  ),
  CANCEL_GRACE_SECONDS: number(10, 0, 3600, 'How long a handler may take to stop before its lease is fenced off.'),
  UNRESPONSIVE_HANDLER_MAX_SECONDS: number(
    600,
    0,
    31_536_000,
    'How long a handler that was asked to stop and still runs keeps its lane; then the lane is released with an error in the log.',
  ),
  SHUTDOWN_GRACE_PERIOD_SECONDS: number(
    300,
    0,
    86_400,
    'How long running jobs may continue after SIGTERM before they are paused.',
  ),
  RESUME_DRAINED_JOBS: flag(
    false,
    'A daemon resumes the jobs that shutdowns have paused when it starts. Off: a person resumes them (hold_kind=drain).',
  ),
  ORPHAN_AFTER_SECONDS: number(
    7200,
    1,
    31_536_000,
    'How long after its time a job may still be PENDING before it fails with ORPHANED.',
  ),
  TOKEN_LIMIT: integer(
    1_000_000,
    0,
    Number.MAX_SAFE_INTEGER,
    'Tokens that one job may use; 0 means no limit. The tenant and the job may set their own.',
  ),
  QUESTION_TIMEOUT_SECONDS: number(
    604_800,
    1,
    maxSeconds,
    'How long a question without a timeout of its own waits for an answer. Then its job fails with QUESTION_EXPIRED, or its default answer applies.',
  ),
  RESULT_LIMIT_BYTES: integer(
    1_048_576,
    1024,
    104_857_600,
    'Maximum size of a result, a phase result or a checkpoint of a job.',
  ),
  REQUEST_MEMORY_BYTES: integer(
    67_108_864,
    16_777_216,
    17_179_869_184,
    'Bytes of request bodies above 64 KB that one daemon reads at once; further requests get 503. One tenant may use half, and may leave as many bytes of answers unread.',
  ),
  HANDLER_THREADS: integer(8, 1, 1024, "Maximum worker threads of one daemon for handlers with isolation 'thread'."),
  HANDLER_THREAD_MEMORY_MB: integer(256, 16, 65_536, 'Maximum heap memory of one such thread.'),
  TENANT_ROLES: flag(
    false,
    "Each tenant's statements run as a database role of its own, which Postgres keeps out of other tenants' schemas.",
  ),
  MIGRATE_CONCURRENCY: integer(4, 1, 64, 'Tenants that are migrated at the same time.'),
  WEBHOOK_ALLOW_PRIVATE: flag(
    false,
    'Webhooks may be sent to private, loopback and link-local addresses. Only where every tenant is trusted.',
  ),
  WEBHOOK_CONCURRENCY: integer(20, 1, 1000, 'Webhooks that one daemon sends at once, over all tenants.'),
  WEBHOOK_TIMEOUT_SECONDS: number(10, 0.1, 300, 'Maximum time of one delivery of a webhook, including the response.'),
  WEBHOOK_MAX_ATTEMPTS: integer(16, 1, 50, 'Attempts to deliver a webhook before the delivery fails.'),
  RETENTION_STALE_AFTER_SECONDS: integer(
    604_800,
    0,
    maxSeconds,
    'Age at which a finished job becomes stale. The tenant may set its own.',
  ),
  RETENTION_DELETE_AFTER_SECONDS: integer(
    2_592_000,
    0,
    maxSeconds,
    'Age, counted from its end, at which a stale job is deleted. The tenant may set its own.',
  ),
  RETENTION_EVENT_DAYS: integer(
    90,
    1,
    365_000,
    'Days that events, webhook deliveries, ended leases and statistics are kept; events at least until jobs become stale. The tenant may set its own.',
  ),
  RETENTION_RECEIVED_EVENT_DAYS: integer(
    7,
    1,
    365_000,
    'Days that an event from outside is kept for jobs that begin to wait for it after it has come.',
  ),
  STREAM_READERS_MAX: integer(10_000, 0, 1_000_000, 'Live streams of events that one daemon serves at once.'),
  STREAM_READERS_PER_TENANT: integer(5000, 1, 1_000_000, 'Live streams that one daemon serves at once for one tenant.'),
  STREAM_READERS_PER_KEY: integer(2500, 1, 1_000_000, 'Live streams that one daemon serves at once for one API key.'),
  STREAM_BUFFER_BYTES: integer(
    4_194_304,
    65_536,
    1_073_741_824,
    'Bytes that may wait for a slow reader of a live stream before it is dropped.',
  ),
  STREAM_POLL_SECONDS: number(1, 0.05, 60, 'Time between two polls for new events for the readers of a tenant.'),
  STREAM_PING_SECONDS: number(15, 0.05, 300, 'Time between two pings on a live stream.'),
  METRICS_PER_TENANT: flag(false, 'Metrics carry the tenant as a label: one series more for each tenant.'),
} satisfies Record<string, Setting<unknown>>;

type Settings = typeof settings;
export type SettingName = keyof Settings;
type Camel<S extends string> = S extends `${infer H}_${infer T}` ? `${Lowercase<H>}${CamelTail<T>}` : Lowercase<S>;
type CamelTail<S extends string> = S extends `${infer H}_${infer T}`
  ? `${Capitalize<Lowercase<H>>}${CamelTail<T>}`
  : Capitalize<Lowercase<S>>;
type Value<S> = S extends Setting<infer T> ? T : never;

export type Config = { readonly [K in SettingName as Camel<K>]: Value<Settings[K]> };

export class ConfigError extends Error {
  override name = 'ConfigError';
}

/** Reads all settings. Throws one ConfigError that names every invalid one, its value and what is allowed. */
export function loadConfig(env: Record<string, string | undefined> = process.env): Config {
  const errors: string[] = [];
  const config: Record<string, unknown> = {};
  for (const [name, setting] of Object.entries(settings) as [SettingName, Setting<unknown>][]) {
    const given = env[name]?.trim();
    const value = given === undefined || given === '' ? setting.default : setting.parse(given);
    if (value === undefined) errors.push(`${name}=${shown(name, given)} is not allowed: ${setting.allowed}`);
    config[camel(name)] = value;
  }
  if (errors.length === 0) errors.push(...contradictions(config as Config));
  if (errors.length > 0) throw new ConfigError(errors.join('\n'));
  if (config.workerId === '') config.workerId = defaultWorkerId();
  return config as Config;
}

/** Like `loadConfig`, from values by the names of `Config`. The environment is not read. */
export function configOf(values: { [K in keyof Config]?: Config[K] | undefined }): Config {
  const names = new Map(Object.keys(settings).map((name) => [camel(name), name]));
  const env: Record<string, string> = {};
  for (const [key, value] of Object.entries(values)) {
    const name = names.get(key);
    if (name === undefined) throw new ConfigError(`${key} is not a setting; known are ${[...names.keys()].join(', ')}`);
    if (value !== undefined) env[name] = String(value);
  }
  return loadConfig(env);
}

/** True if a setting has its default, given or not. */
export function isDefault(name: SettingName, config: Config): boolean {
  return (config as Record<string, unknown>)[camel(name)] === settings[name].default;
}

function contradictions(config: Config): string[] {
  const violations: string[] = [];
  if (config.leaseSeconds < 2 * config.heartbeatIntervalSeconds) {
    violations.push(
      `LEASE_SECONDS=${config.leaseSeconds} is not allowed: at least twice HEARTBEAT_INTERVAL_SECONDS (${config.heartbeatIntervalSeconds})`,
    );
  }
  return violations;
}

/** One row per setting, for `.env.example`, the docs and `leasehold config`. */
export function describeSettings(): { name: SettingName; default: string; allowed: string; doc: string }[] {
  return (Object.entries(settings) as [SettingName, Setting<unknown>][]).map(([name, s]) => ({
    name,
    default: String(s.default),
    allowed: s.allowed,
    doc: s.doc,
  }));
}

// A URL or key in an error message would put a password into the log.
function shown(name: string, value: string | undefined): string {
  return /URL|KEY|SECRET/.test(name) ? '(hidden)' : JSON.stringify(value);
}

function defaultWorkerId(): string {
  return `${hostname()}-${process.pid}-${randomBytes(3).toString('hex')}`;
}

function camel(name: string): string {
  return name.toLowerCase().replace(/_([a-z])/g, (_, c: string) => c.toUpperCase());
}
