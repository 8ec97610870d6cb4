// The commands for jobs, targets, schedules and events: over HTTP with a key, and directly on the database.
import { describe, expect, it, onTestFinished } from 'vitest';
import { runCli } from '../../../server/cli/program.ts';
import type { Screen } from '../../../server/cli/session.ts';
import { LeaseholdClient } from '../../../server/client/client.ts';
import { freePort } from '../../../server/embedded-postgres/cluster.ts';
import { defineJob, z } from '../../../server/index.ts';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { fastSettings, useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { addTenant, createEmptyDatabase, useDatabase } from '../../support/postgres/database.ts';
import { startProxy } from '../../support/postgres/proxies/proxy.ts';

const context = useDatabase();
const double = defineJob({
  type: 'double',
  payload: z.object({ n: z.number() }),
  run: ({ payload, log }) => {
    log('doubling', { n: payload.n });
    return payload.n * 2;
  },
});
const failing = defineJob({
  type: 'fails',
  run: () => {
    throw new Error('no\u001b[31m paper');
  },
});
const spend = defineJob({
  type: 'spend',
  payload: z.object({ cents: z.number() }),
  run: ({ payload, addUsage }) => addUsage(payload),
});
const running = useDaemon(context, { handlers: [double, failing, spend] });

interface Run {
  code: number;
  out: string;
  err: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read answers as a script would.
  json(): any;
}

interface GivenTerminal {
  screen?: Screen;
  interrupt?: AbortSignal;
  env?: Record<string, string>;
  onOut?(text: string): void;
}

interface Terminal {
  cli(line: string | string[], given?: GivenTerminal): Promise<Run>;
  client: LeaseholdClient;
}

async function open(way: 'http' | 'database'): Promise<Terminal> {
  const { tenant } = await addTenant(context.db);
  const { text } = await createApiKey(context.db, { tenantId: tenant.id, name: 'cli', scopes: [...scopes] });
  const { url } = running.daemon;
  const env: Record<string, string> =
    way === 'http'
      ? { LEASEHOLD_URL: url, LEASEHOLD_KEY: text }
      : { DATABASE_URL: context.url, LEASEHOLD_TENANT: tenant.slug, STREAM_POLL_SECONDS: '0.2' };
  return {
    client: new LeaseholdClient({ url, apiKey: text }),
    cli: async (line, { screen, interrupt, onOut, env: other } = {}) => {
      let out = '';
      let err = '';
      const code = await runCli(typeof line === 'string' ? line.split(' ') : line, {
        env: { ...env, ...other },
        out: (shown) => {
          out += shown;
          onOut?.(shown);
        },
        err: (shown) => void (err += shown),
        screen,
        interrupted: () => interrupt ?? new AbortController().signal,
      });
      return { code, out, err, json: () => JSON.parse(out) };
    },
  };
}

describe.each(['http', 'database'] as const)('over %s', (way) => {
  it('enqueues, watches, shows, lists, explains and logs jobs', async () => {
    const { cli } = await open(way);
    const watched = await cli(['jobs', 'enqueue', 'double', '{"n":21}', '--target', 'm 1', '--watch']);
    expect(watched).toMatchObject({ code: 0, err: '' });
    expect(watched.out).toMatch(/status +SUCCESS/);
    expect(watched.out).toMatch(/result +42/);
    const [job] = (await cli('jobs list --json')).json();
    expect(job).toMatchObject({ type: 'double', target_id: 'm 1' });
    expect((await cli('jobs list')).out).toContain(job.id);
    expect((await cli(`jobs show ${job.id.slice(0, 20)} --json`)).json().result).toBe(42);
    expect((await cli(`jobs why ${job.id}`)).out).toContain('FINISHED');
    expect((await cli(`jobs logs ${job.id} --follow`)).out).toContain('doubling {"n":21}');
    expect((await cli(`events tail --job ${job.id} --no-follow`)).out).toContain('job.completed');
    expect((await cli('jobs list --status ERROR')).out).toBe('no jobs\n');
  });

  it('acts on jobs and targets', async () => {
    const { cli } = await open(way);
    const failed = await cli('jobs enqueue fails --target m --watch');
    expect(failed.code).toBe(1);
    const [{ id }] = (await cli('jobs list --held --json')).json();
    const behind = (await cli(['jobs', 'enqueue', 'double', '{"n":1}', '--target', 'm', '--json'])).json().job.id;
    const { out: why } = await cli(`jobs why ${behind}`);
    expect(why).toContain('TARGET_HELD');
    expect(why).not.toContain('DAEMONS_BUSY');
    expect((await cli('targets list')).out).toContain('held');
    expect((await cli(['jobs', 'resolve', id, '--result', '"by hand"', '--author', 'ann'])).out).toContain('SUCCESS');
    expect((await cli(`jobs watch ${behind}`)).code).toBe(0);
    expect((await cli('targets pause m --reason oil')).out).toBe('m is paused\n');
    const waiting = (await cli(['jobs', 'enqueue', 'double', '{"n":1}', '--target', 'm', '--json'])).json().job.id;
    expect((await cli('targets show m')).out).toContain('oil');
    expect((await cli(`jobs pause ${waiting}`)).out).toContain('PAUSED');
    expect((await cli(`jobs resume ${waiting}`)).out).toContain('QUEUED');
    expect((await cli('jobs bulk cancel --target m --dry-run')).out).toBe('1 jobs match\n');
    expect((await cli('jobs bulk cancel --target m')).out).toContain('1 of 1 jobs done');
    expect((await cli('targets resume m --json')).json().paused).toBe(false);
    expect((await cli(`jobs cancel ${waiting}`)).out).toContain('CANCELED');
  });

  it('answers questions, and creates links to them', async () => {
    const { cli, client } = await open(way);
    const { id } = await client.enqueue('demo.approval', { question: 'Ship it?' }, { targetId: 'gate' });
    const question = await eventually(async () => {
      const [found] = (await cli(`questions list --job ${id} --json`)).json();
      expect(found).toBeDefined();
      return found;
    });
    expect((await cli('questions list')).out).toContain('Ship it?');
    await eventually(async () =>
      expect((await cli('jobs list')).out).toContain('waits for a person to answer "Ship it?"'),
    );
    expect((await cli('targets list')).out).toContain('waits for a person to answer');
    expect((await cli('targets show gate')).out).toContain('waits for a person to answer "Ship it?"');
    // Counted a moment after the events.
    await eventually(async () => expect((await cli('top')).out).toMatch(/0 held +1 to answer.*WAITING 1/s));
    expect((await cli(`questions show ${question.id}`)).out).toContain('approve, reject');
    expect((await cli(`questions link ${question.id} --recipient ann`)).out).toMatch(/^http:\S+\/q\/\S{70}\n/);
    expect((await cli(`questions answer ${question.id} --action burn`)).code).toBe(2);
    expect((await cli(['questions', 'answer', question.id, '{"note":"yes"}', '--action', 'approve'])).out).toContain(
      id,
    );
    expect((await client.jobs.wait({ id })).result).toEqual({ approved: true, note: 'yes' });
  });

  it('works on schedules, and shows the daemons', async () => {
    const { cli, client } = await open(way);
    await client.schedules.create({ name: 'nightly', cron: '0 3 * * *', job: { type: 'double', payload: { n: 1 } } });
    expect((await cli('schedules list')).out).toContain('nightly');
    expect((await cli('schedules pause nightly')).out).toBe('nightly is paused\n');
    expect((await cli('schedules resume nightly')).out).toContain('runs next at');
    expect((await cli('schedules run nightly')).out).toContain('enqueued');
    expect((await cli('schedules show nightly --json')).json().missed).toBe('latest');
    expect((await cli('schedules delete nightly')).out).toBe('deleted nightly\n');
    const key = way === 'http' ? ['--key', fastSettings.ADMIN_API_KEY as string] : [];
    expect((await cli(['workers', ...key])).out).toContain('alive');
  });

  it('refuses wrong usage with a message', async () => {
    const { cli } = await open(way);
    // The daemon has the schema of the payload; on the database the worker checks it.
    if (way === 'http') expect(await cli(['jobs', 'enqueue', 'double', '{"n":"x"}'])).toMatchObject({ code: 2 });
    expect((await cli(['jobs', 'enqueue', 'double', '{"n":'])).err).toContain('payload must be JSON');
    expect(await cli('jobs show ffffffff')).toMatchObject({ code: 1 });
    expect((await cli('jobs bulk cancel')).err).toContain('say which jobs');
    expect((await cli('jobs bulk frobnicate --all')).code).toBe(2);
    expect((await cli('jobs list --limit none')).code).toBe(2);
  });
});

it('sets limits and budgets, shows the usage, and raises the budget of a held job', async () => {
  const { cli } = await open('http');
  expect((await cli('limits set slow --rate 100/minute --by payload.account')).out).toBe('slow: 100 per minute\n');
  expect((await cli('limits list')).out).toMatch(/slow +100 per minute +by payload.account/);
  expect((await cli('limits show slow --json')).json()).toMatchObject({ rate: 100, key: 'payload.account' });
  expect((await cli('limits delete slow')).out).toBe('deleted slow\n');
  expect((await cli('budgets list')).out).toBe('no budgets\n');
  expect((await cli('budgets set daily --unit cents --limit 500 --per day')).out).toContain('500 cents for a day');
  expect((await cli('budgets raise daily 800')).out).toContain('800 cents for a day');
  expect((await cli('budgets raise hourly 800')).code).toBe(1);
  expect((await cli('budgets set daily --unit cents --limit much')).code).toBe(2);
  expect((await cli('budgets set daily --unit cents --limit 1 --per year')).code).toBe(2);
  const spent = await cli(['jobs', 'enqueue', 'spend', '{"cents":3}', '--budget', 'cents=1', '--watch']);
  expect(spent).toMatchObject({ code: 1, err: expect.stringContaining('used 3 of 1 cents') });
  const [{ id }] = (await cli('jobs list --held --json')).json();
  expect((await cli(`jobs show ${id}`)).out).toMatch(/used +3 cents of 1\n/);
  expect((await cli(`jobs resume ${id} --budget cents=ten`)).code).toBe(2);
  expect((await cli(`jobs resume ${id} --budget cents=10`)).code).toBe(0);
  expect((await cli(`jobs watch ${id}`)).code).toBe(0);
  await eventually(async () => expect((await cli('budgets list')).out).toMatch(/daily +800 cents +a day .* 6\n/));
  expect((await cli('budgets usage --days 2')).out).toMatch(/cents +spend +6\n/);
  expect((await cli('budgets delete daily')).out).toBe('deleted daily\n');
});

it('follows events until Ctrl-C, without a gap', async () => {
  const { cli, client } = await open('http');
  const first = await client.enqueue(double, { n: 1 });
  await client.jobs.wait(first);
  const interrupt = new AbortController();
  let out = '';
  const tail = cli('events tail --json', { interrupt: interrupt.signal, onOut: (text) => void (out += text) });
  await eventually(() => expect(out).toContain('job.completed'));
  const second = await client.enqueue(double, { n: 2 });
  await eventually(() => expect(out.split(second.id).length - 1).toBe(3));
  interrupt.abort();
  expect((await tail).code).toBe(0);
});

it('draws tables that fit, without control characters of messages, and colours on a terminal only', async () => {
  const { cli, client } = await open('http');
  const { id } = await client.enqueue('fails', {}, { targetId: 't'.repeat(150) });
  await client.jobs.wait({ id }).catch(() => undefined);
  const plain = await cli('jobs list');
  expect(plain.out).not.toContain('\u001b');
  const screen = { columns: () => 100, rows: () => 30, colours: true };
  const { out } = await cli('jobs list', { screen });
  expect(out).toContain('\u001b[31mERROR');
  for (const line of out.replaceAll(/\u001b\[\d+m/g, '').split('\n')) expect(line.length).toBeLessThanOrEqual(100);
  // A narrow terminal has no room for all columns: the error matters more than columns without a value.
  const narrow = (await cli('jobs list', { screen: { ...screen, columns: () => 80, colours: false } })).out;
  expect(narrow).toMatch(/^ID +STATUS +TYPE +TARGET +AGE +MESSAGE\n/);
  for (const line of narrow.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
  for (const shown of [await cli(`jobs show ${id}`), await cli(`jobs watch ${id}`)]) {
    expect(shown.out).toContain('no [31m paper');
    expect(shown.out + shown.err).not.toContain('\u001b');
  }
});

it('shows lanes, holds and counts at once', async () => {
  const { cli, client } = await open('http');
  await client.jobs.wait(await client.enqueue('fails', {}, { targetId: 'press' })).catch(() => undefined);
  expect((await cli('top')).out).toMatch(/1 held.*press +ERROR/s);
  const interrupt = new AbortController();
  const screen = { columns: () => 100, rows: () => 30, colours: false };
  const onOut = (text: string) => text.includes('press') && interrupt.abort();
  const { out } = await cli('top', { screen, interrupt: interrupt.signal, onOut });
  expect(out.startsWith('\u001b[?1049h')).toBe(true);
  expect(out.endsWith('\u001b[?1049l')).toBe(true);
});

it('needs a key over HTTP, and a tenant where there are several', async () => {
  const run = (line: string, env: Record<string, string>) => {
    let err = '';
    return runCli(line.split(' '), { env, out: () => {}, err: (text) => void (err += text) }).then((code) => ({
      code,
      err,
    }));
  };
  expect((await run('jobs list', { LEASEHOLD_URL: running.daemon.url })).err).toContain('--key or LEASEHOLD_KEY');
  await addTenant(context.db);
  await addTenant(context.db);
  expect((await run('jobs list', { DATABASE_URL: context.url })).err).toContain('--tenant');
  expect(await run('jobs list --tenant nobody', { DATABASE_URL: context.url })).toMatchObject({ code: 1 });
});

it('examines the database, and suggests remedies', async () => {
  const { cli } = await open('database');
  const healthy = await cli('doctor --json');
  const states = Object.fromEntries(
    healthy.json().checks.map(({ name, state }: Record<string, string>) => [name, state]),
  );
  expect(states).toMatchObject({
    version: 'ok',
    writable: 'ok',
    clock: 'ok',
    migrations: 'ok',
    rights: 'ok',
    // Given no address of its own, LISTEN goes through the pooler of test:pgbouncer too.
    LISTEN: process.env.TEST_POOLER_URL ? 'warning' : 'ok',
  });
  expect(states).toMatchObject({ pooler: 'ok', daemons: 'ok', disk: 'ok', settings: 'ok' });
  expect(healthy.code).toBe(0);
  const proxy = await startProxy(context.url, { asPooler: true });
  const pooled = await cli('doctor', { env: { DATABASE_URL: proxy.url } });
  expect(pooled.out).toContain('a pooler is in between');
  const empty = await createEmptyDatabase();
  onTestFinished(() => empty.drop());
  const unmigrated = await cli('doctor', { env: { DATABASE_URL: empty.url } });
  expect(unmigrated.out).toMatch(/FAILED +migrations +the database is empty\n +Run `leasehold migrate`/);
  expect(unmigrated.code).toBe(1);
  const nowhere = await cli('doctor', { env: { DATABASE_URL: `postgres://127.0.0.1:${await freePort()}/x` } });
  expect(nowhere).toMatchObject({ code: 1 });
  expect(nowhere.out).toContain('Check DATABASE_URL');
});
