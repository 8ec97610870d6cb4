// What `leasehold/worker` loads at run time: it runs on machines that have no way to the database.
import { join } from 'node:path';
import { build } from 'esbuild';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

test('the remote worker loads no database code and no package but zod', async () => {
  const { metafile } = await build({
    absWorkingDir: packageRoot(),
    entryPoints: [join('server', 'remote-worker', 'index.ts')],
    bundle: true,
    format: 'esm',
    platform: 'node',
    packages: 'external',
    metafile: true,
    write: false,
    logLevel: 'silent',
  });
  const files = Object.keys(metafile.inputs);
  expect(files).toContain('server/durable/durable-calls.ts');
  const imports = files.flatMap((file) => metafile.inputs[file]?.imports ?? []);
  const packages = new Set(imports.filter(({ external }) => external).map(({ path }) => path));
  expect([...packages]).toEqual(['zod']);
  expect(files.filter((file) => file.startsWith('server/database/'))).toEqual([]);
});
