// `npm run client:types` writes the types of the clients from the OpenAPI document in test/snapshots/openapi.json.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../server/kernel/environment.ts';
import { pythonTypes } from './openapi-to-python.ts';
import { answerTypes, optionTypes } from './openapi-to-typescript.ts';

writeFileSync(join(packageRoot(), 'server/client/generated/api-types.ts'), answerTypes());
writeFileSync(join(packageRoot(), 'server/client/generated/api-options.ts'), optionTypes());
writeFileSync(join(packageRoot(), 'scripts/clients/python/leasehold/types.py'), pythonTypes());
