import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { pythonTypes } from '../../../scripts/generate/openapi-to-python.ts';
import { answerTypes, optionTypes } from '../../../scripts/generate/openapi-to-typescript.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';

test.each([
  ['server/client/generated/api-types.ts', answerTypes],
  ['server/client/generated/api-options.ts', optionTypes],
  ['scripts/clients/python/leasehold/types.py', pythonTypes],
])('%s is in step with the OpenAPI document', (file, text) => {
  const written = readFileSync(join(packageRoot(), file), 'utf8');
  expect(written, 'run npm run client:types').toBe(text());
});
