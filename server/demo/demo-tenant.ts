// The tenant "demo" of a fresh install, and a key for it that is the same at every start.
import { chmod, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Database } from '../database/database.ts';
import { createLogger } from '../kernel/logger.ts';
import { scopes } from '../tenants/api-keys/key.ts';
import { createApiKey } from '../tenants/api-keys/key-store.ts';
import { KeyVerifier } from '../tenants/api-keys/verifier.ts';
import { createTenant } from '../tenants/provision.ts';
import { findTenant } from '../tenants/tenant-store.ts';

const slug = 'demo';

/** Returns the key's text. Kept beside the embedded data, readable by its owner only. */
export async function prepareDemo(db: Database, dataDir: string): Promise<string> {
  const file = join(dataDir, 'demo-key');
  const existing = await findTenant(db, slug);
  if (existing?.status === 'ACTIVE' || existing?.status === 'SUSPENDED') {
    const kept = await readFile(file, 'utf8').catch(() => '');
    const key =
      kept === '' ? undefined : await new KeyVerifier(db, { adminApiKey: '' }, createLogger('silent')).verify(kept);
    if (key?.tenantId === existing.id) return kept;
    const fresh = await createApiKey(db, { tenantId: existing.id, name: 'demo', scopes: [...scopes] });
    return keep(file, fresh.text);
  }
  const { key } = await createTenant(db, { slug });
  return keep(file, key.text);
}

async function keep(file: string, text: string): Promise<string> {
  await writeFile(file, text, { mode: 0o600 })
    .then(() => chmod(file, 0o600))
    .catch(() => {});
  return text;
}
