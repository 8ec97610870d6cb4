// scripts/generate/generate-migrations.mjs runs drizzle-kit once per schema: DRIZZLE_SCHEMA=control|tenant.
import { defineConfig } from 'drizzle-kit';

const schema = process.env.DRIZZLE_SCHEMA === 'control' ? 'control' : 'tenant';

export default defineConfig({
  dialect: 'postgresql',
  schema: `./server/database/tables/${schema}.ts`,
  out: process.env.DRIZZLE_OUT ?? `./migrations/${schema}`,
});
