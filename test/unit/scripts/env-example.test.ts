import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { configurationDoc, envExample } from '../../../scripts/generate/settings-docs.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';

test.each([
  ['.env.example', envExample],
  ['docs/configuration.md', configurationDoc],
])('%s is in step with the settings', (file, text) => {
  const written = readFileSync(join(packageRoot(), file), 'utf8');
  expect(written, 'run npm run env:example').toBe(text());
});
