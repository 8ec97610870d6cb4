// Column types that drizzle lacks or spells at length.
import { bigint, customType, timestamp } from 'drizzle-orm/pg-core';

export const xid8 = customType<{ data: string }>({ dataType: () => 'xid8' });
export const bytea = customType<{ data: Buffer }>({ dataType: () => 'bytea' });
export const at = (name: string) => timestamp(name, { withTimezone: true, mode: 'string' });
export const bigintText = (name: string) => bigint(name, { mode: 'bigint' });
