// leasehold keys …: create, list, revoke and rotate keys of a tenant or (--operator) of the operator.
import type { Command } from 'commander';
import { z } from 'zod';
import type { Queryable } from '../../database/database.ts';
import { problem } from '../../kernel/errors.ts';
import { parseFields, timeField } from '../../kernel/fields.ts';
import { type ApiKey, type NewApiKey, type Scope, scopes } from '../../tenants/api-keys/key.ts';
import { createApiKey, listApiKeys, revokeApiKey, rotateApiKey } from '../../tenants/api-keys/key-store.ts';
import { getTenant } from '../../tenants/tenant-store.ts';
import { facts } from '../output.ts';
import { type Session, table } from '../session.ts';

interface OwnerOptions {
  tenant?: string;
  operator?: boolean;
}

const createOptions = z.object({
  name: z.string().trim().min(1).max(200),
  scope: z.array(z.enum(scopes)),
  expires: timeField().optional(),
});
const overlapSeconds = z.coerce.number().int().min(0).max(2_592_000);

export function addKeyCommands(program: Command, session: Session): void {
  const keys = program.command('keys').description('create, list, revoke and rotate API keys');
  withOwner(keys.command('create'))
    .description('create a key; its text is printed only once')
    .requiredOption('--name <name>', 'what the key is for')
    .option('--scope <scope...>', `any of ${scopes.join(', ')}; without it, all of them`)
    .option('--expires <time>', 'when it expires, e.g. 2030-01-01T00:00:00Z')
    .action(async (options: OwnerOptions & { name: string; scope?: string[]; expires?: string }) => {
      const { name, scope, expires } = parseFields(createOptions, { ...options, scope: options.scope ?? [...scopes] });
      const tenantId = await ownerOf(session, options);
      const input = { tenantId, name, scopes: scope as Scope[], expiresAt: expires };
      printNew(session, await createApiKey(await session.database(), input));
    });
  withOwner(keys.command('list'))
    .description('list keys, newest first')
    .action(async (options: OwnerOptions) => {
      const db = await session.database();
      const found = await listAll(db, await ownerOf(session, options));
      const now = db.now();
      const rows = found.map((key) => [
        key.id,
        key.name,
        key.scopes.join(','),
        stateOf(key, now),
        key.lastUsedAt ?? 'never',
      ]);
      session.print(
        found.map(toRow),
        rows.length > 0 ? table(['ID', 'NAME', 'SCOPES', 'STATE', 'LAST USED'], rows) : 'no keys',
      );
    });
  withOwner(keys.command('revoke <id>'))
    .description('revoke a key; daemons notice within seconds')
    .action(async (id: string, options: OwnerOptions) => {
      const key = await revokeApiKey(await session.database(), await ownerOf(session, options), id);
      session.print(toRow(key), `revoked ${key.id} (${key.name})`);
    });
  withOwner(keys.command('rotate <id>'))
    .description('replace a key by a new one with the same name, scopes and expiry')
    .option('--overlap <seconds>', 'how long the old key remains valid', '0')
    .action(async (id: string, options: OwnerOptions & { overlap: string }) => {
      const overlap = parseFields(overlapSeconds, options.overlap, '--overlap');
      const { key } = await rotateApiKey(await session.database(), await ownerOf(session, options), id, overlap);
      printNew(session, key);
    });
}

async function listAll(db: Queryable, tenantId: string | null): Promise<ApiKey[]> {
  const keys: ApiKey[] = [];
  for (;;) {
    const page = await listApiKeys(db, tenantId, { limit: 1000, before: keys.at(-1) });
    keys.push(...page);
    if (page.length === 0) return keys;
  }
}

function withOwner(command: Command): Command {
  return command
    .option('--tenant <slug>', "the tenant's keys")
    .option('--operator', "the operator's keys, for /api/admin");
}

async function ownerOf(session: Session, options: OwnerOptions): Promise<string | null> {
  if ((options.tenant === undefined) === (options.operator !== true)) {
    throw problem('INVALID_FIELD', 'say whose key it is: either --tenant <slug> or --operator');
  }
  return options.tenant === undefined ? null : (await getTenant(await session.database(), options.tenant)).id;
}

function printNew(session: Session, key: NewApiKey): void {
  session.print(
    { ...toRow(key), key: key.text },
    `${facts({ id: key.id, name: key.name, scopes: key.scopes.join(', '), expires: key.expiresAt ?? 'never', key: key.text })}\n\nThe key is shown this once; keep it safe.`,
  );
}

// For display only: the database's clock decides whether a key is valid.
function stateOf(key: ApiKey, now: Date): string {
  if (key.revokedAt) return 'revoked';
  if (key.expiresAt === null) return 'valid';
  return Date.parse(key.expiresAt) <= now.getTime() ? 'expired' : `until ${key.expiresAt.slice(0, 19)}`;
}

function toRow(key: ApiKey) {
  const { id, tenantId, name, createdAt, expiresAt, revokedAt, lastUsedAt } = key;
  return {
    id,
    tenant_id: tenantId,
    name,
    scopes: key.scopes,
    created_at: createdAt,
    expires_at: expiresAt,
    revoked_at: revokedAt,
    last_used_at: lastUsedAt,
  };
}
