// leasehold tenants …: create, list, show, settings, suspend, activate, delete.
import type { Command } from 'commander';
import { invalidFields } from '../../kernel/fields.ts';
import { createTenant } from '../../tenants/create-tenant.ts';
import { deleteTenant, requestTenantDeletion } from '../../tenants/delete-tenant.ts';
import type { Tenant, TenantSettings } from '../../tenants/tenant.ts';
import {
  activateTenant,
  getTenant,
  readAllTenants,
  suspendTenant,
  updateTenantSettings,
} from '../../tenants/tenant-store.ts';
import { facts } from '../output.ts';
import { type Session, table } from '../session.ts';

interface PatchOptions {
  set: string[];
  unset: string[];
  merge?: string;
}

export function addTenantCommands(program: Command, session: Session): void {
  const tenants = program.command('tenants').description('create, change and delete tenants');
  addCreate(tenants, session);
  addReads(tenants, session);
  addSettings(tenants, session);
  addStatus(tenants, session);
  addDelete(tenants, session);
}

function addCreate(tenants: Command, session: Session): void {
  withPatchOptions(tenants.command('create <slug>'))
    .description('create a tenant and its first key, or complete an interrupted creation')
    .action(async (slug: string, options: PatchOptions) => {
      const patch = collectSettings(options);
      const settings = Object.keys(patch).length > 0 ? (patch as TenantSettings) : undefined;
      const { tenant, key } = await createTenant(await session.database(), { slug, settings });
      session.print(
        { tenant: toRow(tenant), key: { id: key.id, key: key.text, scopes: key.scopes } },
        `${describe(tenant)}\nkey       ${key.text}\n\nThe key is shown this once; keep it safe.`,
      );
    });
}

function addReads(tenants: Command, session: Session): void {
  tenants
    .command('list')
    .description('list all tenants')
    .action(async () => {
      const all = await readAllTenants(await session.database());
      const rows = all.map((tenant) => [tenant.slug, tenant.status, tenant.createdAt.slice(0, 19)]);
      session.print(all.map(toRow), rows.length > 0 ? table(['SLUG', 'STATUS', 'CREATED'], rows) : 'no tenants');
    });
  tenants
    .command('show <slug>')
    .description('show one tenant')
    .action(async (slug: string) => printTenant(session, await getTenant(await session.database(), slug)));
}

function addSettings(tenants: Command, session: Session): void {
  withPatchOptions(tenants.command('settings <slug>'))
    .description("show a tenant's settings, or change some and leave the others")
    .action(async (slug: string, options: PatchOptions) => {
      const patch = collectSettings(options);
      const db = await session.database();
      const changes = Object.keys(patch).length > 0;
      const tenant = changes ? await updateTenantSettings(db, slug, patch) : await getTenant(db, slug);
      session.print(tenant.settings, JSON.stringify(tenant.settings, null, 2));
    });
}

function addStatus(tenants: Command, session: Session): void {
  tenants
    .command('suspend <slug>')
    .description('stop claiming its jobs; its keys may only read')
    .action(async (slug: string) => printTenant(session, await suspendTenant(await session.database(), slug)));
  tenants
    .command('activate <slug>')
    .description('activate a suspended tenant')
    .action(async (slug: string) => printTenant(session, await activateTenant(await session.database(), slug)));
}

function addDelete(tenants: Command, session: Session): void {
  tenants
    .command('delete <slug>')
    .description('delete a tenant and all its data, in two steps: the first prints a token for the second')
    .option('--confirm <token>', 'the token of the first step')
    .option('--force', 'even while its jobs are running')
    .action(async (slug: string, options: { confirm?: string; force?: boolean }) => {
      const db = await session.database();
      if (options.confirm === undefined) {
        const { tenant, confirm } = await requestTenantDeletion(db, slug);
        session.print(
          { tenant: toRow(tenant), confirm },
          `Nothing is deleted yet. To delete ${slug} with all its data:\n  leasehold tenants delete ${slug} --confirm ${confirm}`,
        );
        return;
      }
      const tenant = await deleteTenant(db, slug, { confirm: options.confirm, force: options.force });
      session.print({ deleted: toRow(tenant) }, `deleted ${slug}`);
    });
}

function withPatchOptions(command: Command): Command {
  const gather = (value: string, before: string[]) => [...before, value];
  return command
    .option('--set <name=value>', 'set one setting, e.g. concurrency=5 or retention.event_days=30', gather, [])
    .option('--unset <name>', 'reset to the default', gather, [])
    .option('--merge <json>', 'a JSON merge patch');
}

function printTenant(session: Session, tenant: Tenant): void {
  session.print(toRow(tenant), describe(tenant));
}

function describe(tenant: Tenant): string {
  return facts({
    slug: tenant.slug,
    status: tenant.status,
    schema: tenant.schemaName,
    created: tenant.createdAt,
    settings: JSON.stringify(tenant.settings),
  });
}

/** Without the webhook secrets, which must not be printed. */
function toRow(tenant: Tenant) {
  const { id, slug, schemaName: schema, status, settings, createdAt, updatedAt } = tenant;
  return { id, slug, schema, status, settings, created_at: createdAt, updated_at: updatedAt };
}

/** One JSON merge patch from `--set name=value`, `--unset name` and `--merge json`. */
function collectSettings(sources: PatchOptions): Record<string, unknown> {
  const patch = sources.merge === undefined ? {} : parseObject(sources.merge);
  for (const assignment of sources.set) {
    const [name, value] = split(assignment);
    assign(patch, name, readValue(value));
  }
  for (const name of sources.unset) assign(patch, name, null);
  return patch;
}

function parseObject(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // Not JSON: refused below.
  }
  throw invalidFields([{ field: '--merge', message: 'must be a JSON object' }]);
}

function split(assignment: string): [string, string] {
  const at = assignment.indexOf('=');
  if (at < 1) throw invalidFields([{ field: '--set', message: `must look like name=value, not ${assignment}` }]);
  return [assignment.slice(0, at), assignment.slice(at + 1)];
}

/** Parsed if it is JSON, else the text itself: `5`, `["a"]`, `pause`. */
function readValue(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function assign(patch: Record<string, unknown>, path: string, value: unknown): void {
  const steps = path.split('.');
  const last = steps.pop() as string;
  if (path.includes('__proto__')) throw invalidFields([{ field: path, message: 'is not a known field' }]);
  let place = patch;
  for (const step of steps) {
    const inner = place[step];
    const next = typeof inner === 'object' && inner !== null ? (inner as Record<string, unknown>) : {};
    place[step] = next;
    place = next;
  }
  place[last] = value;
}
