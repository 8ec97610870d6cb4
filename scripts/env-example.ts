// `npm run env:example` writes .env.example and docs/configuration.md from the settings in
// server/kernel/config.ts.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { configurationDoc, envExample } from '../server/kernel/env-example.ts';
import { packageRoot } from '../server/kernel/package-root.ts';

writeFileSync(join(packageRoot(), '.env.example'), envExample());
writeFileSync(join(packageRoot(), 'docs', 'configuration.md'), configurationDoc());
