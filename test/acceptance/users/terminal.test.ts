// The daemon and the command line on a real terminal: colours, widths, the full screen of `top`, and Ctrl-C.
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { describe, expect, test, vi } from 'vitest';
import { freePort } from '../../../server/embedded-postgres/cluster.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { compileForBuild, useBuild } from '../../support/daemon/build.ts';
import { fastSettings } from '../../support/daemon/daemon.ts';
import { useEffects } from '../../support/daemon/effects.ts';
import { daemonProgram } from '../../support/daemon/process.ts';
import { eventually } from '../../support/eventually.ts';
import { addJob, reread } from '../../support/jobs.ts';
import { useTenant } from '../../support/postgres/database.ts';
import { hasTerminals, type OnTerminal, runOnTerminal } from '../../support/terminal/terminal.ts';

vi.setConfig({ testTimeout: 240_000 });

const context = useTenant();
useBuild();
const cwd = packageRoot();
const cli = [process.execPath, 'dist/cli/main.js'];
const ctrlC = '\u0003';
const longTimeouts = { timeoutMs: 90_000 };
const shows = (terminal: OnTerminal, text: string | RegExp) =>
  eventually(() => expect(terminal.shown()).toMatch(text), longTimeouts);

describe.skipIf(!hasTerminals)(`on a terminal${hasTerminals ? '' : ' (skipped: no Python with a pty module)'}`, () => {
  test('the daemon explains what Ctrl-C waits for; commands use the terminal, and print plain text into a pipe', async () => {
    const effects = await useEffects();
    const port = await freePort();
    const daemon = runOnTerminal([process.execPath, ...daemonProgram], {
      cwd,
      columns: 120,
      env: {
        ...fastSettings,
        ...effects.env,
        LOG_LEVEL: 'info',
        DATABASE_URL: context.url,
        DEMO_TENANT: 'never',
        HANDLERS: await compileForBuild('test/fixtures/work.ts'),
        PORT: String(port),
        SHUTDOWN_GRACE_PERIOD_SECONDS: '150',
      },
    });
    await shows(daemon, `Leasehold is running at http://127.0.0.1:${port}`);
    expect(daemon.shown()).toMatch(/\d\d:\d\d:\d\d\u001b\[0m \u001b\[36minfo/);

    const target = 'press '.repeat(30);
    const payload = { until: effects.gate('never').path };
    const job = await addJob(context, { type: 'work', targetId: target, payload });
    await eventually(() => expect(effects.read().length).toBeGreaterThan(0), longTimeouts);
    const { text } = await createApiKey(context.db, { tenantId: context.tenant.id, name: 'cli', scopes: [...scopes] });
    const env = { LEASEHOLD_URL: `http://127.0.0.1:${port}`, LEASEHOLD_KEY: text };

    const list = [...cli, 'jobs', 'list'];
    const [listed, plain, monochrome, unsized] = await Promise.all([
      show(list, { env, columns: 90 }),
      promisify(execFile)(cli[0] as string, list.slice(1), { cwd, env: { ...process.env, ...env } }),
      show(list, { env: { ...env, NO_COLOR: '1' }, columns: 90 }),
      show(list, { env, columns: 0 }),
    ]);
    expect(listed).toContain('\u001b[36mRUNNING');
    expect(widthOf(listed)).toBeLessThanOrEqual(90);
    expect(plain.stdout).not.toContain('\u001b');
    expect(plain.stdout).toContain(target.trim());
    expect(monochrome).not.toContain('\u001b');
    expect(widthOf(monochrome)).toBeLessThanOrEqual(90);
    expect(widthOf(unsized)).toBeLessThanOrEqual(80);

    const top = runOnTerminal([...cli, 'top'], { cwd, env, columns: 90, rows: 20 });
    await shows(top, /\u001b\[36mRUNNING\u001b\[0m 1 .*press/s);
    top.type(ctrlC);
    expect(await top.exitCode).toBe(0);
    expect(top.shown().startsWith('\u001b[?1049h\u001b[?25l')).toBe(true);
    expect(top.shown().endsWith('\u001b[?25h\u001b[?1049l')).toBe(true);

    daemon.type(ctrlC);
    await shows(daemon, /Waiting up to 150 s for 1 running job \(work\)\. Press Ctrl-C again to stop at once\./);
    await eventually(() => {
      // One that follows within a second counts as a copy of the first.
      daemon.type(ctrlC);
      expect(daemon.shown()).toContain('shutting down at once');
    }, longTimeouts);
    expect(await daemon.exitCode).toBe(3);
    expect(await reread(context, job)).toMatchObject({ status: 'PAUSED', hold: { kind: 'drain' } });
  });

  test('top restores the terminal if the daemon does not answer', async () => {
    const env = { LEASEHOLD_URL: `http://127.0.0.1:${await freePort()}`, LEASEHOLD_KEY: 'lh_none' };
    const waiting = runOnTerminal([...cli, 'top'], { cwd, env });
    await shows(waiting, '\u001b[?25l');
    waiting.type(ctrlC);
    expect(await waiting.exitCode).toBe(0);
    expect(waiting.shown()).toContain('\u001b[?25h\u001b[?1049l');
    expect(waiting.shown()).not.toContain('error');
  });
});

async function show(program: string[], given: { env: Record<string, string>; columns: number }): Promise<string> {
  const terminal = runOnTerminal(program, { cwd, ...given });
  expect(await terminal.exitCode).toBe(0);
  return terminal.shown();
}

function widthOf(text: string): number {
  const lines = text.replaceAll(/\u001b\[[\d;?]*[a-zA-Z]/g, '').split('\r\n');
  return Math.max(...lines.map((line) => line.length));
}
