// The tour of README.md as printed, in one shell, against a daemon with the demo's handlers: enqueue, fail, why, resume,
// pause, kill -9, recover.
import { execFile, spawnSync } from 'node:child_process';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { launchProcess, startProcess } from '../../support/daemon/process.ts';
import { readSnippets } from '../../support/docs.ts';
import { useTenantPerTest } from '../../support/postgres/database.ts';

const context = useTenantPerTest();
const shells = ['bash', 'zsh'].filter((shell) => spawnSync(shell, ['-c', 'true']).status === 0);

describe.each(shells)('in %s', (shell) => {
  test('the tour works as printed', async () => {
    // The owner of a job names the process, which the tour kills.
    const env = { HANDLERS: '', WORKER_ID: '', LEASE_SECONDS: '60' };
    const daemon = await startProcess(context, { env });
    const URL = /"url":"([^"]+)"/.exec(daemon.output())?.[1] ?? '';
    const again = daemon.exited.then(async () => {
      // The reader waits for the end of the lease.
      await context.db.query(
        `update ${context.schema}.leases set expires_at = now() - interval '1 hour' where state = 'ACTIVE'`,
      );
      return launchProcess(context, { env: { ...env, PORT: new globalThis.URL(URL).port } });
    });
    const key = await createApiKey(context.db, { tenantId: context.tenant.id, name: 'tour', scopes: [...scopes] });
    const snippets = await readSnippets('README.md');
    const script = snippets
      .filter(({ language, info, text }) => language === 'sh' && info === '' && !/^(npm|npx) /m.test(text))
      .map(({ text }) => text);
    const { stdout } = await promisify(execFile)(shell, ['-euc', script.join('')], {
      env: { PATH: process.env.PATH, KEY: key.text, URL },
    });
    await again;
    expect((await daemon.exited).signal).toBe('SIGKILL');
    expect(stdout).toContain('download completed, process completed, upload completed');
    expect(stdout).toMatch(/Target machine-7 is held by job .* \(demo.fail\), ERROR .*Resume, resolve or skip job/);
    expect(stdout).toMatch(/QUEUED\nSUCCESS after 2 attempts/);
    expect(stdout).toMatch(/Target machine-7 is paused by .*: maintenance/);
    expect(stdout).toMatch(/SUCCESS after 2 attempts\njob.enqueued/);
    expect(stdout.match(/job.phase_completed download/g)).toHaveLength(1);
    expect(stdout).toContain('job.lease_expired');
  });
});
