// Parts that all tables share: the placeholder schema of tenants, and column types that drizzle lacks or makes verbose.
import { bigint, customType, pgSchema, timestamp } from 'drizzle-orm/pg-core';

export const xid8 = customType<{ data: string }>({ dataType: () => 'xid8' });
export const bytea = customType<{ data: Buffer }>({ dataType: () => 'bytea' });
export const at = (name: string) => timestamp(name, { withTimezone: true, mode: 'string' });
/** bigint as text, because it can exceed 2^53. */
export const bigintText = (name: string) => bigint(name, { mode: 'bigint' }).$type<string>();

/** The placeholder for the schema of each tenant. Migrations and reads replace it. */
export const tenantTemplate = pgSchema('tenant_template');
