// The build that `npm start` would make first: minutes on a crowded machine, and no business of the test's own times.
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { beforeAll } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

export function useBuild(): void {
  beforeAll(async () => {
    await promisify(execFile)(process.execPath, ['scripts/bootstrap.mjs', 'build'], { cwd: packageRoot() });
  }, 600_000);
}
