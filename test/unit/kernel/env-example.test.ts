import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { envExample } from '../../../server/kernel/env-example.ts';
import { packageRoot } from '../../../server/kernel/package-root.ts';

test('.env.example is in step with the settings', () => {
  const written = readFileSync(join(packageRoot(), '.env.example'), 'utf8');
  expect(written, 'run npm run env:example').toBe(envExample());
});
