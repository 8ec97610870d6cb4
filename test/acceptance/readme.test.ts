// The shell lines of README.md as printed, in one shell, against a daemon with the demo's handlers.
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { packageRoot } from '../../server/kernel/environment.ts';
import { scopes } from '../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../server/tenants/api-keys/key-store.ts';
import { startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();

test('a job is stopped, explained, resumed and given up', { timeout: 120_000 }, async () => {
  const daemon = await startProcess(context, { env: { HANDLERS: '' } });
  const { text: KEY } = await createApiKey(context.db, {
    tenantId: context.tenant.id,
    name: 'readme',
    scopes: [...scopes],
  });
  const URL = /"url":"([^"]+)"/.exec(daemon.output())?.[1];
  const readme = await readFile(join(packageRoot(), 'README.md'), 'utf8');
  const blocks = [...readme.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, body = '']) => body);
  const script = blocks.filter((block) => block.includes('$URL')).join('');
  const env = { PATH: process.env.PATH, KEY, URL };
  const { stdout } = await promisify(execFile)('bash', ['-euc', script], { env });
  expect(stdout).toContain('BEHIND_JOB');
  // The first was given up, so the second runs.
  await eventually(async () => {
    const { body } = await daemon.request('GET', '/api/jobs?target_id=machine-7');
    const { jobs } = body as unknown as { jobs: { type: string; status: string }[] };
    expect(jobs.find((job) => job.type === 'demo.sleep')?.status).toBe('CANCELED');
    expect(jobs.find((job) => job.type === 'demo.echo')?.status).toBe('SUCCESS');
  });
});
