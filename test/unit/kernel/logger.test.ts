import { spawn } from 'node:child_process';
import { existsSync, openSync } from 'node:fs';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

test.skipIf(!existsSync('/dev/full'))('an output that accepts no data does not stop the program', async () => {
  const code = `import('./server/kernel/logger.ts').then(({ createLogger }) => {
    const logger = createLogger('info');
    for (let i = 0; i < 3; i++) logger.info('a line');
    process.stderr.write('alive');
  })`;
  const child = spawn(process.execPath, ['--import', 'tsx', '-e', code], {
    cwd: packageRoot(),
    stdio: ['ignore', openSync('/dev/full', 'w'), 'pipe'],
  });
  const output = Buffer.concat((await child.stderr?.toArray()) ?? []).toString();
  expect(output).toBe('alive');
});
