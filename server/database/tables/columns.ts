// What all tables share: the placeholder schema of tenants, and column types that drizzle lacks or spells at length.
import { bigint, customType, pgSchema, timestamp } from 'drizzle-orm/pg-core';

export const xid8 = customType<{ data: string }>({ dataType: () => 'xid8' });
export const bytea = customType<{ data: Buffer }>({ dataType: () => 'bytea' });
export const at = (name: string) => timestamp(name, { withTimezone: true, mode: 'string' });
/** bigint as the driver gives it: text, because it can pass 2^53. */
export const bigintText = (name: string) => bigint(name, { mode: 'bigint' }).$type<string>();

/** Stands for the schema of each tenant: migrations and reads put the real one in its place. */
export const tenantTemplate = pgSchema('tenant_template');
