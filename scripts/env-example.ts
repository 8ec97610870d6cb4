// `npm run env:example` writes .env.example from the settings in server/kernel/config.ts.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { envExample } from '../server/kernel/env-example.ts';
import { packageRoot } from '../server/kernel/package-root.ts';

writeFileSync(join(packageRoot(), '.env.example'), envExample());
