import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';
import { HandlerRegistry } from '../../../../server/worker/handlers/handler-registry.ts';
import { loadHandlers } from '../../../../server/worker/handlers/load-handlers.ts';
import { temporaryDirectory } from '../../../support/temporary.ts';

const defineJob = pathToFileURL(
  fileURLToPath(new URL('../../../../server/worker/handlers/define-job.ts', import.meta.url)),
).href;
const job = (type: string) => `import { defineJob } from '${defineJob}';
export const job = defineJob({ type: '${type}', run: () => 1 });\n`;

async function write(files: Record<string, string>): Promise<string> {
  const directory = await temporaryDirectory('handlers');
  for (const [name, text] of Object.entries(files)) {
    await mkdir(dirname(join(directory, name)), { recursive: true });
    await writeFile(join(directory, name), text);
  }
  return directory;
}

test('a directory is read with its subdirectories; tests, types and underscored files are left out', async () => {
  const directory = await write({
    'a.ts': job('a'),
    'sub/b.ts': `${job('b')}export default job;\nexport const helper = 1;\n`,
    'list.ts': `import { defineJob } from '${defineJob}';
export default [defineJob({ type: 'c', run: () => 1 }), defineJob({ type: 'd', run: (): number => 2 })];\n`,
    '_shared.ts': 'export const shared = 1;\n',
    'a.test.ts': 'throw new Error("not me");\n',
    'types.d.ts': 'export type X = 1;\n',
    'readme.md': '# no',
  });
  const definitions = await loadHandlers('.', directory);
  expect(new HandlerRegistry(definitions).types()).toEqual(['a', 'b', 'c', 'd']);
  expect(definitions.find((d) => d.type === 'b')?.file).toBe(join(directory, 'sub', 'b.ts'));
});

test.each([
  ['a syntax error', { 'bad.ts': 'export const = 1;' }, /bad\.ts/],
  ['a throw', { 'bad.ts': 'throw new Error("no luck");' }, /bad\.ts: no luck/],
  ['no job', { 'bad.ts': 'export const a = 1;' }, /bad\.ts: exports no job/],
  ['a bad definition', { 'bad.ts': job('no spaces please') }, /bad\.ts: type must match/],
  ['a job made by hand', { 'bad.ts': 'export const a = { type: "x", run() {} };' }, /bad\.ts: its export "a"/],
  [
    'a type twice',
    { 'a.ts': job('same'), 'b.ts': job('same') },
    /b\.ts: job type "same" is already defined in .*a\.ts/,
  ],
  ['nothing', { 'readme.md': '' }, /has no modules/],
])('%s stops the boot and names the file', async (_, files, message) => {
  await expect(loadHandlers(await write(files as Record<string, string>))).rejects.toThrow(message);
});

test('a missing path is named', async () => {
  await expect(loadHandlers('./nowhere.ts', '/tmp')).rejects.toThrow('HANDLERS=./nowhere.ts: there is no such file');
});
