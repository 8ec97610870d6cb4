import { and, asc, eq, gt } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { quoteSchema } from '../../../../server/database/identifiers.ts';
import { build, columnList, columnsOf, defineRead } from '../../../../server/database/reads/drizzle.ts';
import { apiKeys } from '../../../../server/database/tables/control.ts';
import { webhookDeliveries } from '../../../../server/database/tables/tenant.ts';

const { id, jobId } = columnsOf(webhookDeliveries);
const afterId = defineRead<{ job: string; after: string; limit: number }>()(({ job, after, limit }) =>
  build
    .select({ id, jobId })
    .from(webhookDeliveries)
    .where(and(eq(webhookDeliveries.jobId, job), gt(webhookDeliveries.id, after)))
    .orderBy(asc(webhookDeliveries.id))
    .limit(limit),
);

test('a read is schema-qualified for its tenant, parameterised, and names columns as the code does', () => {
  const given = { job: 'j', after: '"tenant_template".', limit: 5 };
  const bound = afterId.bind(quoteSchema('tenant_acme'), given);
  expect(bound.text).toBe(
    'select "id" as "id", "job_id" as "jobId" from "tenant_acme"."webhook_deliveries" where ' +
      '("tenant_acme"."webhook_deliveries"."job_id" = $1 and "tenant_acme"."webhook_deliveries"."id" > $2) ' +
      'order by "tenant_acme"."webhook_deliveries"."id" asc limit $3',
  );
  expect(bound.values).toEqual(['j', '"tenant_template".', 5]);
});

test('a read built for one tenant serves the next one', () => {
  const given = { job: 'j', after: 'a', limit: 1 };
  afterId.bind(quoteSchema('tenant_acme'), given);
  const { text } = afterId.bind(quoteSchema('tenant_other'), given);
  expect(text).toContain('from "tenant_other"."webhook_deliveries"');
  expect(text).not.toContain('tenant_acme');
});

test('a missing value is an error, not a null', () => {
  expect(() => afterId.bind(quoteSchema('tenant_acme'), { job: 'j', limit: 5 } as never)).toThrow('"after"');
});

test('a column list names all columns of the selection', () => {
  const { hash: _, ...shown } = columnsOf(apiKeys);
  expect(columnList(apiKeys, shown)).toBe(
    'id, tenant_id as "tenantId", name, scopes, created_at as "createdAt", expires_at as "expiresAt", ' +
      'revoked_at as "revokedAt", last_used_at as "lastUsedAt"',
  );
  expect(columnList(webhookDeliveries, { id, jobId }, 'd')).toBe('d.id, d.job_id as "jobId"');
});
