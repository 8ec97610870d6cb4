// The secrets that sign a tenant's webhooks. All of them sign, so that receivers can switch one by one: rotate, give
// the new secret to every receiver, and the next rotation drops the old one.

import { randomBytes } from 'node:crypto';
import type { Queryable } from '../database/database.ts';
import { controlSchema } from '../database/identifiers.ts';
import { runQuery, statement } from '../database/sql.ts';
import { announceTenants } from './tenant-store.ts';

// The new secret and the previous one.
const maxSecrets = 2;

/** Returns the secrets, newest first. Creates the first one if there is none. */
export async function ensureWebhookSecrets(db: Queryable, tenantId: string): Promise<string[]> {
  await runQuery(
    db,
    `update ${controlSchema}.tenants set webhook_secrets = array[:secret::text], updated_at = now()
      where id = :tenantId and cardinality(webhook_secrets) = 0`,
    { tenantId, secret: newWebhookSecret() },
  );
  const [row] = await runQuery<{ webhook_secrets: string[] }>(
    db,
    `select webhook_secrets from ${controlSchema}.tenants where id = :tenantId`,
    { tenantId },
  );
  return row?.webhook_secrets ?? [];
}

const rotateStatement = statement(`
  update ${controlSchema}.tenants
     set webhook_secrets = array[:secret::text] || webhook_secrets[1 : :kept::int],
         updated_at = now()
   where id = :tenantId
  returning webhook_secrets`);

/** Puts a new secret first; the previous one keeps signing unless `keepPrevious` is false. */
export async function rotateWebhookSecrets(
  db: Queryable,
  tenantId: string,
  options: { keepPrevious: boolean },
): Promise<string[]> {
  const kept = options.keepPrevious ? maxSecrets - 1 : 0;
  const [row] = await rotateStatement.query<{ webhook_secrets: string[] }>(db, controlSchema, {
    tenantId,
    secret: newWebhookSecret(),
    kept,
  });
  await announceTenants(db);
  return row?.webhook_secrets ?? [];
}

// The format that the Standard Webhooks libraries expect.
export function newWebhookSecret(): string {
  return `whsec_${randomBytes(32).toString('base64')}`;
}
