// The migration runner puts the tenant's own schema in the place of this one.
import { pgSchema } from 'drizzle-orm/pg-core';

export const tenantTemplate = pgSchema('tenant_template');
