// A test run that is killed leaves no process behind.
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { expect, onTestFinished, test } from 'vitest';
import { isAlive } from '../../../server/embedded-postgres/cluster-directory.ts';
import { eventually } from '../../support/eventually.ts';

const program = fileURLToPath(new URL('../../support/vitest/run-with-child.ts', import.meta.url));

test('a process whose test run is gone exits with its children', async () => {
  const worker = fork(program, [], { execArgv: ['--import', 'tsx'], stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  const exited = once(worker, 'exit');
  const [pid] = (await once(worker, 'message')) as [number];
  onTestFinished(async () => {
    worker.kill('SIGKILL');
    await exited;
    if (isAlive(pid)) process.kill(pid, 'SIGKILL');
  });
  expect(isAlive(pid)).toBe(true);
  // As when the main process of the run was killed.
  worker.disconnect();
  await eventually(() => expect(isAlive(pid)).toBe(false));
  await exited;
});
