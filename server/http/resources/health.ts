// The state of this daemon for orchestrators and scrapers (liveness, readiness, metrics), and of all daemons for
// operators.
import { setTimeout as sleep } from 'node:timers/promises';
import type { Registry as MetricsRegistry } from 'prom-client';
import { z } from 'zod';
import { listDaemons } from '../../daemon-registry/live-daemons.ts';
import type { Database } from '../../database/database.ts';
import { WriteCheck } from '../../database/servers/write-check.ts';
import { handled, RouteGroup, reply } from '../route.ts';

interface Check {
  ok: boolean;
  detail?: string;
}

/** The daemon's part of /readyz. Called on every request, so it must not block. */
export interface ReadinessState {
  /** All schemas are at the version of this code. */
  migrated: boolean;
  draining: boolean;
  /** The number of running jobs, and the end of the grace period. */
  drain?: Record<string, unknown>;
  checks?: Record<string, Check>;
}

interface HealthDependencies {
  db: Database;
  metricsRegistry: MetricsRegistry;
  readiness(): ReadinessState;
}

const checkSchema = z.strictObject({ ok: z.boolean(), detail: z.string().optional() });
const readySchema = z.strictObject({
  ready: z.boolean(),
  checks: z.record(z.string(), checkSchema),
  drain: z.record(z.string(), z.unknown()).optional(),
});

export function healthRoutes(deps: HealthDependencies): RouteGroup {
  const group = new RouteGroup('Service');
  const writes = new WriteCheck(deps.db);
  const metrics = new SharedText(() => deps.metricsRegistry.metrics());
  group.route({
    method: 'get',
    path: '/livez',
    summary: 'The process is alive',
    access: 'public',
    answers: { 200: z.strictObject({ alive: z.literal(true) }) },
    handle: () => ({ alive: true }),
  });
  group.route({
    method: 'get',
    path: '/readyz',
    summary: 'The daemon can serve: the database accepts writes, migrations, not draining',
    access: 'public',
    answers: { 200: readySchema, 503: readySchema },
    handle: async () => {
      const state = deps.readiness();
      const checks: Record<string, Check> = {
        database: await writes.run(),
        migrations: state.migrated ? { ok: true } : { ok: false, detail: 'not all migrations are applied yet' },
        draining: state.draining ? { ok: false, detail: 'the daemon is shutting down' } : { ok: true },
        ...state.checks,
      };
      const ready = Object.values(checks).every((check) => check.ok);
      return reply(ready ? 200 : 503, { ready, checks, ...(state.drain ? { drain: state.drain } : {}) });
    },
  });
  group.route({
    method: 'get',
    path: '/metrics',
    summary: 'Metrics in the format of Prometheus',
    access: 'public',
    contentType: 'text/plain',
    answers: { 200: z.string() },
    handle: async ({ response }) => {
      const text = await metrics.read();
      response.set('Content-Type', deps.metricsRegistry.contentType).end(text);
      return handled;
    },
  });
  return group;
}

// Ten scrapes a second are more than any monitoring needs.
const betweenTextsMs = 100;

/**
 * A text that anybody may ask for and that takes milliseconds to write: callers who ask at the same time share it. It is
 * always written after the call.
 */
class SharedText {
  readonly #write: () => Promise<string>;
  #next: Promise<Buffer> | undefined;
  #writtenAt = Number.NEGATIVE_INFINITY;

  constructor(write: () => Promise<string>) {
    this.#write = write;
  }

  read(): Promise<Buffer> {
    this.#next ??= this.#writeSoon();
    return this.#next;
  }

  async #writeSoon(): Promise<Buffer> {
    await sleep(this.#writtenAt + betweenTextsMs - performance.now());
    this.#next = undefined;
    this.#writtenAt = performance.now();
    return Buffer.from(await this.#write());
  }
}

const workerSchema = z
  .strictObject({
    id: z.string(),
    incarnation: z.string().describe('A new one for each process.'),
    host: z.string(),
    pid: z.int(),
    version: z.string(),
    started_at: z.string(),
    last_beat_at: z.string(),
    seconds_since_beat: z.number(),
    state: z.enum(['alive', 'draining', 'lost']),
    drain_ends_at: z.string().nullable().describe('When its drain pauses or requeues what still runs.'),
    running: z.int().describe('Jobs it was running at its last heartbeat.'),
    job_types: z.array(z.string()),
  })
  .meta({ id: 'Worker' });

export function adminWorkerRoutes({ db }: { db: Database }): RouteGroup {
  const group = new RouteGroup('Administration');
  group.route({
    method: 'get',
    path: '/api/admin/workers',
    summary: 'List daemons: alive, draining, or lost within the last day',
    access: 'operator',
    answers: { 200: z.strictObject({ workers: z.array(workerSchema) }) },
    handle: async () => ({ workers: await listDaemons(db) }),
  });
  return group;
}
