// How API keys look over HTTP.
import { z } from 'zod';
import { timeField } from '../../kernel/fields.ts';
import { type ApiKey, type NewApiKey, scopes } from '../../tenants/api-keys/key.ts';

export const scopeSchema = z.enum(scopes);
const isoTime = z.iso.datetime({ offset: true });

export const keySchema = z
  .strictObject({
    id: z.string(),
    name: z.string(),
    scopes: z.array(scopeSchema),
    created_at: isoTime,
    expires_at: isoTime.nullable(),
    revoked_at: isoTime.nullable(),
    last_used_at: isoTime.nullable().describe('To the minute or so.'),
  })
  .meta({ id: 'ApiKey' });

export const newKeySchema = keySchema
  .extend({ key: z.string().describe('The key itself. It is shown this once and cannot be read again.') })
  .meta({ id: 'NewApiKey' });

export const createKeyBody = z.strictObject({
  name: z.string().trim().min(1).max(200),
  scopes: z.array(scopeSchema).min(1).max(scopes.length),
  expires_at: timeField().optional().describe('When the key ends by itself.'),
});

export const rotateKeyBody = z.strictObject({
  overlap_seconds: z
    .int()
    .min(0)
    .max(2_592_000)
    .default(0)
    .describe('How long the old key still works beside the new one; 0 ends it at once.'),
});

export const keyIdParam = z.string().max(100);

export function keyToApi(key: ApiKey): z.input<typeof keySchema> {
  return {
    id: key.id,
    name: key.name,
    scopes: [...key.scopes],
    created_at: key.createdAt,
    expires_at: key.expiresAt,
    revoked_at: key.revokedAt,
    last_used_at: key.lastUsedAt,
  };
}

export function newKeyToApi(key: NewApiKey): z.input<typeof newKeySchema> {
  return { ...keyToApi(key), key: key.text };
}
