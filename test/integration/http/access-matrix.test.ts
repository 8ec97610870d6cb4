// Every route with every kind of caller. The routes, and who may call them, come from the daemon itself; the callers of
// another tenant use ids of a tenant that has one of everything, and must neither read nor change it.
import { Agent, fetch } from 'undici';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey, revokeApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { suspendTenant } from '../../../server/tenants/tenant-store.ts';
import { fastSettings, useDaemon } from '../../support/daemon/daemon.ts';
import { eventually } from '../../support/eventually.ts';
import { type FilledTenant, fillTenant } from '../../support/http/one-of-everything.ts';
import {
  type ApiDocument,
  type Body,
  fieldsOf,
  fillPath,
  type Operation,
  operationsOf,
  readDocument,
  withField,
} from '../../support/http/operations.ts';
import { addTenant, useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const running = useDaemon(context);
const adminKey = fastSettings.ADMIN_API_KEY as string;
let operations: Operation[];
let victim: FilledTenant;
let neighbour: FilledTenant;
let document: ApiDocument;
let suspendedId: string;

// Failed requests are limited per address: each group of strangers comes from one of its own, where the system has more
// than one address of its own.
const canBind = process.platform === 'linux';
const agents: Agent[] = [];
function agentFrom(address: string): Agent {
  const agent = new Agent(canBind ? { localAddress: address } : {});
  agents.push(agent);
  return agent;
}
const usual = agentFrom('127.0.0.1');

beforeAll(async () => {
  const { url } = running.daemon;
  document = await readDocument(url);
  operations = operationsOf(document);
  victim = await fillTenant({ db: context.db, url, adminKey }, context.tenant);
  neighbour = await fillTenant({ db: context.db, url, adminKey }, (await addTenant(context.db, 'neighbour')).tenant);
  suspendedId = (await addTenant(context.db, 'suspended')).tenant.id;
  await suspendTenant(context.db, 'suspended');
  // The daemon learns of both before any of their keys is used.
  await running.daemon.registry.refresh();
  expect(running.daemon.registry.bySlug('suspended')?.status).toBe('SUSPENDED');
});
afterAll(() => Promise.all(agents.map((agent) => agent.close())));

/** What differs between two answers to the same question: ids of new rows, times, places in the log. */
const volatile =
  /[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\d:.+Z-]+|"(lane_position|lane_seq|position|seq|number)":\d+|"next_cursor":"[^"]+"/g;

const keyOf = async (tenantId: string, only: readonly (typeof scopes)[number][], expiresAt?: string) =>
  createApiKey(context.db, { tenantId, name: 'matrix', scopes: only, expiresAt });

interface Outcome {
  status: number;
  code: string | undefined;
  text: string;
}

/** With ids of the victim in path, query and body. */
async function send(operation: Operation, key: string | undefined, agent = usual): Promise<Outcome> {
  const { url } = running.daemon;
  const idOf = (name: string) => victim.idIn(operation.path, name);
  const query = new URLSearchParams();
  for (const { name, in: place } of operation.parameters) {
    if (place === 'query' && /^(job_id|target_id)$/.test(name)) query.set(name, idOf(name));
    if (name === 'snapshot') query.set(name, 'true');
    if (name === 'include') query.set(name, 'payload,result');
    if (name === 'limit') query.set(name, '50');
  }
  const body: Body | undefined = operation.body && { ...operation.body.example };
  for (const name of ['job_id', 'lease_id']) if (body?.[name] !== undefined) body[name] = idOf(name);
  if (operation.id === 'createAdminTenant') Object.assign(body ?? {}, { slug: victim.tenant.slug });
  const response = await fetch(`${url}${fillPath(operation.path, idOf)}${query.size > 0 ? `?${query}` : ''}`, {
    method: operation.method,
    headers: {
      origin: url,
      ...(key !== undefined && { authorization: `Bearer ${key}` }),
      ...(body && { 'content-type': 'application/json' }),
    },
    ...(body && { body: JSON.stringify(body) }),
    dispatcher: agent,
  });
  const isStream = response.headers.get('content-type')?.startsWith('text/event-stream');
  const text = isStream ? await firstChunk(response.body as ReadableStream<Uint8Array>) : await response.text();
  const code = response.headers.get('content-type')?.includes('problem') ? JSON.parse(text).code : undefined;
  return { status: response.status, code, text };
}

/** The snapshot comes first, then events for as long as the reader stays. */
async function firstChunk(stream: ReadableStream<Uint8Array>): Promise<string> {
  const reader = stream.getReader();
  const { value } = await reader.read();
  await reader.cancel();
  return Buffer.from(value ?? []).toString();
}

/** Every operation that requires a key, with its outcome, in the form in which a difference is easy to read. */
async function outcomes(key: string | undefined, expected: (operation: Operation) => string, agents = [usual]) {
  const seen: string[] = [];
  const wanted: string[] = [];
  for (const [n, operation] of operations.filter(({ access }) => access !== 'public').entries()) {
    const outcome = await send(operation, key, agents[n % agents.length]);
    expect(outcome.text, operation.id).not.toContain(victim.marker);
    const want = expected(operation);
    const isPassed = ![401, 403, 429].includes(outcome.status) && outcome.status < 500;
    const got = want === 'passed' && isPassed ? 'passed' : `${outcome.status} ${outcome.code}`;
    seen.push(`${operation.id}: ${got}`);
    wanted.push(`${operation.id}: ${want}`);
  }
  expect(seen).toEqual(wanted);
}

/** What a request could change of the victim. */
async function victimRows(): Promise<unknown> {
  const tables = ['jobs', 'targets', 'schedules', 'leases', 'operations', 'questions'];
  const digests = tables.map(
    (table) =>
      `(select md5(coalesce(string_agg(t::text, ',' order by t::text), '')) from "${victim.tenant.schemaName}".${table} as t) as ${table}`,
  );
  // Two statements, because in a cluster only the coordinator has the control schema.
  return Promise.all([
    context.db.query(`select ${digests.join(', ')}`),
    context.db.query(
      `select (select string_agg(k.id || k.name || coalesce(k.revoked_at::text, ''), ',' order by k.id)
                 from leasehold.api_keys as k where k.tenant_id = $1) as keys,
              (select t.settings::text || t.status from leasehold.tenants as t where t.id = $1) as tenant`,
      [victim.tenant.id],
    ),
  ]);
}

describe('a caller without a valid key', () => {
  const refused = () => (canBind ? '401 UNAUTHORIZED' : 'refused');

  it.each([
    ['no key', '127.0.0.2', async () => undefined],
    ['a text that is no key', '127.0.0.3', async () => "lh_' or 1=1 --"],
    [
      'a revoked key',
      '127.0.0.4',
      async () => {
        const key = await keyOf(victim.tenant.id, scopes);
        await revokeApiKey(context.db, victim.tenant.id, key.id);
        return key.text;
      },
    ],
    ['an expired key', '127.0.0.5', async () => (await keyOf(victim.tenant.id, scopes, '2001-01-01T00:00:00Z')).text],
  ])('%s is refused by every route', async (_name, address, keyText) => {
    const key = await keyText();
    const agent = agentFrom(address);
    // There are more routes than one address may try.
    if (canBind) return outcomes(key, refused, [agent, agentFrom(address.replace('127.0.0', '127.0.1'))]);
    // One address for all: beyond its limit a stranger gets 429 instead.
    for (const operation of operations.filter(({ access }) => access !== 'public')) {
      expect([401, 429], operation.id).toContain((await send(operation, key, agent)).status);
    }
  });
});

describe('a caller of another tenant', () => {
  it.each(scopes)('passes with the scope %s if it is enough, and reaches nothing of the victim', async (scope) => {
    const before = await victimRows();
    const { text } = await keyOf(neighbour.tenant.id, [scope]);
    await outcomes(text, ({ access }) =>
      typeof access !== 'string' && access.includes(scope) ? 'passed' : '403 FORBIDDEN',
    );
    expect(await victimRows()).toEqual(before);
  });

  it('gets 404 for every id in a path, unless the id is its own', async () => {
    const { text } = await keyOf(neighbour.tenant.id, scopes);
    const named = operations.filter(
      ({ access, method, path }) =>
        typeof access !== 'string' && method !== 'PUT' && path !== '/api/events/{name}' && /\{(?!target_id)/.test(path),
    );
    expect(named.length).toBeGreaterThan(35);
    for (const operation of named) {
      const { status, text: answer } = await send(operation, text);
      // A list: an unknown job has none.
      if (operation.id === 'listJobDeliveries') expect(JSON.parse(answer)).toEqual({ deliveries: [] });
      else expect([operation.id, status]).toEqual([operation.id, 404]);
    }
  });

  /** Names that a caller chooses for its own things, in fields and queries that are called like those of ids. */
  const ownNames = /(^|\.)(addon_id|worker_id|target_id|client_request_id|request_id|id)$/;
  const isId = (name: string) => /(^|[._])(ids?|job|job_ids|lease_id|parent|schedule|question)(\.0)?$/.test(name);

  it('is answered in bodies and queries as if the ids of the victim were unknown', async () => {
    const ids = (path: string, name: string) => victim.idIn(path, name);
    const ofVictim = [
      victim.jobId,
      ids('/api/scheduler', 'job_id'),
      ids('', 'lease_id'),
      ids('/api/questions', 'id'),
      ids('/api/schedules', 'id'),
      ids('', 'operation_id'),
    ];
    const { text: key } = await keyOf(neighbour.tenant.id, scopes);
    const { url } = running.daemon;
    const before = await victimRows();
    const answer = async (operation: Operation, query: string, body: Body | undefined, used: string) => {
      const path = fillPath(operation.path, (name) => neighbour.idIn(operation.path, name));
      const response = await fetch(`${url}${path}${query}`, {
        method: operation.method,
        headers: { authorization: `Bearer ${key}`, origin: url, ...(body && { 'content-type': 'application/json' }) },
        ...(body && { body: JSON.stringify(body) }),
        dispatcher: usual,
      });
      const isStream = response.headers.get('content-type')?.startsWith('text/event-stream');
      // A stream without snapshot begins with what comes next.
      if (isStream) await response.body?.cancel();
      const text = isStream ? '' : await response.text();
      expect(text, operation.id).not.toContain(victim.marker);
      return `${response.status} ${text.replaceAll(used, '<used>').replace(volatile, '<other>')}`;
    };
    const compare = async (operation: Operation, name: string, send: (id: string) => Promise<string>) => {
      const unknown = await send('01890a5d-ac96-774b-bcce-b302099a8057');
      for (const id of ofVictim) expect([operation.id, name, await send(id)]).toEqual([operation.id, name, unknown]);
    };
    const seen: string[] = [];
    for (const operation of operations.filter(({ access }) => typeof access !== 'string')) {
      const { client_request_id, request_id, unique, ...example } = operation.body?.example ?? {};
      const fields = operation.body === undefined ? [] : fieldsOf(document, operation.body.schema);
      for (const path of fields.filter((one) => isId(one.join('.')) && !ownNames.test(one.join('.')))) {
        const name = path.join('.');
        seen.push(name);
        await compare(operation, name, (id) => answer(operation, '', withField(example, path, id), id));
      }
      for (const { name } of operation.parameters.filter(
        ({ in: place, name: one }) => place === 'query' && isId(one),
      )) {
        if (ownNames.test(name)) continue;
        seen.push(name);
        const body = operation.body && example;
        await compare(operation, name, (id) => answer(operation, `?${name}=${id}`, body, id));
      }
    }
    for (const name of ['after.0.job', 'filter.ids.0', 'filter.parent_id', 'job_id', 'job_ids.0', 'lease_id'])
      expect(seen).toContain(name);
    await eventually(async () => {
      const response = await fetch(`${url}/api/operations?limit=200`, { headers: { authorization: `Bearer ${key}` } });
      const { operations: begun } = (await response.json()) as { operations: Body[] };
      // One whose canary is a job that fails ends as failed, if that job has run by then.
      expect(begun.filter(({ status }) => status === 'running')).toEqual([]);
    });
    expect(await victimRows()).toEqual(before);
  });

  it('would read the victim with its key: the ids are correct', async () => {
    const { text } = await keyOf(victim.tenant.id, scopes);
    for (const operation of operations) {
      if (operation.method !== 'GET' || typeof operation.access === 'string' || !operation.path.includes('{')) continue;
      const { status, text: answer } = await send(operation, text);
      expect([operation.id, status]).toEqual([operation.id, 200]);
      if (/^get(Job|Target|TargetJob|Schedule|Operation|SchedulerJob)$/.test(operation.id))
        expect(answer).toContain(victim.marker);
    }
  });
});

describe('a suspended tenant', () => {
  it('may read, and finish running jobs, but change nothing else', async () => {
    const { text } = await keyOf(suspendedId, scopes);
    expect(operations.filter(({ allowedWhileSuspended }) => allowedWhileSuspended).length).toBeGreaterThan(0);
    await outcomes(text, ({ method, access, allowedWhileSuspended }) => {
      if (access === 'operator') return '403 FORBIDDEN';
      return method === 'GET' || allowedWhileSuspended ? 'passed' : '403 TENANT_SUSPENDED';
    });
  });
});

describe('an operator', () => {
  it('is refused by every route of a tenant', async () => {
    const ofTenants = operations.filter(({ access }) => access !== 'public' && access !== 'operator');
    expect(ofTenants.length).toBeGreaterThan(50);
    for (const operation of ofTenants) {
      const { status, code } = await send(operation, adminKey);
      expect([operation.id, status, code]).toEqual([operation.id, 403, 'FORBIDDEN']);
    }
  });
});

describe('a public route', () => {
  it('answers the same with and without a key, and shows no tenant', async () => {
    const { text: key } = await keyOf(neighbour.tenant.id, scopes);
    const open = operations.filter(({ access }) => access === 'public');
    // Everything else requires a key: a route that becomes public by mistake shows up here.
    expect(open.map(({ id }) => id).sort()).toEqual(
      ['getLivez', 'getMetrics', 'getOpenApi', 'getReadyz', 'getSession', 'signIn', 'signOut'].sort(),
    );
    for (const operation of open) {
      const without = await send(operation, undefined);
      const withKey = await send(operation, key);
      expect([operation.id, withKey.status]).toEqual([operation.id, without.status]);
      for (const { text } of [without, withKey]) expect(text, operation.id).not.toContain(victim.marker);
    }
  });
});

describe('the hosted form of a question', () => {
  it('opens for everybody who has the link, with any key or none; an altered or revoked link shows and changes nothing', async () => {
    const { url } = running.daemon;
    const { text: ownKey } = await keyOf(victim.tenant.id, scopes);
    const { text: otherKey } = await keyOf(neighbour.tenant.id, scopes);
    const links = `${url}/api/questions/${victim.idIn('/api/questions/{id}', 'id')}/links`;
    const asOwner = { headers: { authorization: `Bearer ${ownKey}`, 'content-type': 'application/json' } };
    const created = await fetch(links, { method: 'POST', ...asOwner, body: '{}' });
    const link = (await created.json()) as { id: string; url: string };
    const path = new URL(link.url).pathname;
    const agent = agentFrom('127.0.0.6');
    const request = async (method: 'GET' | 'POST', at: string, key: string | undefined) => {
      const response = await fetch(`${url}${at}`, {
        method,
        headers: {
          ...(key !== undefined && { authorization: `Bearer ${key}` }),
          ...(method === 'POST' && { 'content-type': 'application/x-www-form-urlencoded' }),
        },
        ...(method === 'POST' && { body: 'action=approve' }),
        dispatcher: agent,
      });
      return { status: response.status, shows: (await response.text()).includes(victim.marker) };
    };
    const before = await victimRows();
    const middle = Math.floor(path.length / 2);
    const changed = path.slice(0, middle) + (path[middle] === 'A' ? 'B' : 'A') + path.slice(middle + 1);
    for (const key of [undefined, otherKey, ownKey, adminKey]) {
      expect(await request('GET', path, key)).toEqual({ status: 200, shows: true });
      for (const wrong of [changed, '/q/unknown']) {
        expect(await request('GET', wrong, key)).toEqual({ status: 404, shows: false });
        expect(await request('POST', wrong, key)).toEqual({ status: 404, shows: false });
      }
    }
    expect((await fetch(`${links}/${link.id}`, { method: 'DELETE', ...asOwner })).status).toBeLessThan(300);
    for (const key of [undefined, otherKey, ownKey, adminKey]) {
      expect(await request('GET', path, key)).toEqual({ status: 410, shows: false });
      expect(await request('POST', path, key)).toEqual({ status: 410, shows: false });
    }
    expect(await victimRows()).toEqual(before);
  });
});
