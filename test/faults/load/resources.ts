// People who change what a tenant has: schedules, keys, limits, budgets, targets and settings. Each is made once, under a
// name of its own, and changed at most once after that was acknowledged: so the checker knows what must be there.
import { fastSettings } from '../../support/daemon/daemon.ts';
import type { TestTenant, World } from '../world.ts';
import { type NewOperation, operate } from './operations.ts';

type Request = Pick<NewOperation, 'method' | 'path' | 'body'> & { operator?: boolean };

interface Kind {
  make(name: string): Request;
  /** After it was acknowledged; `id` is the one of the answer. */
  change(made: { name: string; id: string }): Request & { removes: boolean };
}

const schedule = (name: string) => ({ name, cron: '0 3 1 1 *', job: { type: 'work' } });

const kinds: Record<string, Kind> = {
  schedule: {
    make: (name) => ({ method: 'POST', path: '/api/schedules', body: schedule(name) }),
    change: ({ id }) => ({ method: 'POST', path: `/api/schedules/${id}/pause`, removes: false }),
  },
  removedSchedule: {
    make: (name) => ({ method: 'POST', path: '/api/schedules', body: schedule(name) }),
    change: ({ id }) => ({ method: 'DELETE', path: `/api/schedules/${id}`, removes: true }),
  },
  key: {
    make: (name) => ({ method: 'POST', path: '/api/keys', body: { name, scopes: ['read'] } }),
    change: ({ id }) => ({ method: 'DELETE', path: `/api/keys/${id}`, removes: false }),
  },
  limit: {
    make: (name) => ({ method: 'PUT', path: `/api/limits/${name}`, body: { type: name, concurrency: 1 } }),
    change: ({ name }) => ({ method: 'DELETE', path: `/api/limits/${name}`, removes: true }),
  },
  budget: {
    make: (name) => ({ method: 'PUT', path: `/api/budgets/${name}`, body: { unit: 'nothing', limit: 1, per: 'day' } }),
    change: ({ name }) => ({ method: 'DELETE', path: `/api/budgets/${name}`, removes: true }),
  },
  target: {
    make: (name) => ({ method: 'PUT', path: `/api/targets/${name}`, body: { labels: { name } } }),
    change: ({ name }) => ({ method: 'POST', path: `/api/targets/${name}/pause`, body: {}, removes: false }),
  },
};

/** One of each kind after the other, half of them changed; between them settings of which there is only one. */
export async function changeResources(world: World, isOn: () => boolean): Promise<void> {
  const { choices, tenants } = world;
  for (let n = 0; isOn(); n++) {
    const tenant = choices.pick(tenants);
    const kind = choices.pick(Object.keys(kinds));
    const name = `${kind}-${n}`;
    const { make, change } = kinds[kind] as Kind;
    const made = await send(world, tenant, 'make', { kind, resource: name }, make(name));
    if (made.outcome === 'ok' && choices.pick([true, false])) {
      const id = made.answer?.id ?? made.answer?.key?.id ?? '';
      const { removes, ...request } = change({ name, id });
      await send(world, tenant, removes ? 'remove' : 'change', { kind, resource: name }, request);
    }
    await setSetting(world, tenant, n);
    await rotateSecret(world, tenant);
    await world.pause(200);
  }
}

/** High enough to refuse nothing. */
const minSetting = 1_000_000;

async function setSetting(world: World, tenant: TestTenant, n: number): Promise<void> {
  const path = `/api/admin/tenants/${tenant.tenant.slug}`;
  const body = { settings: { max_queued: minSetting + n } };
  const about = { kind: 'setting', resource: String(minSetting + n) };
  await send(world, tenant, 'set', about, { method: 'PATCH', path, body, operator: true });
}

async function rotateSecret(world: World, tenant: TestTenant): Promise<void> {
  await operate(world.log, {
    name: 'set',
    daemon: world.anyDaemon(),
    tenant: tenant.tenant.slug,
    apiKey: tenant.apiKey,
    kind: 'secret',
    method: 'POST',
    path: '/api/webhooks/secret/rotate',
    body: {},
    read: ({ secrets }) => ({ resource: secrets?.[0] ?? '' }),
  });
}

function send(
  world: World,
  { tenant, apiKey }: TestTenant,
  name: 'make' | 'change' | 'remove' | 'set',
  about: { kind: string; resource: string },
  { operator, ...request }: Request,
): ReturnType<typeof operate> {
  const key = operator === true ? (fastSettings.ADMIN_API_KEY as string) : apiKey;
  return operate(world.log, {
    name,
    daemon: world.anyDaemon(),
    tenant: tenant.slug,
    apiKey: key,
    ...about,
    ...request,
  });
}
