// `npm run env:example` writes .env.example and docs/configuration.md from the settings in
// server/kernel/config.ts.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../server/kernel/environment.ts';
import { configurationDoc, envExample } from './settings-docs.ts';

writeFileSync(join(packageRoot(), '.env.example'), envExample());
writeFileSync(join(packageRoot(), 'docs', 'configuration.md'), configurationDoc());
