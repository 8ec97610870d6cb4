// docs/tutorial.md, snippet by snippet, in an empty directory. `npm` and `npx` are stand-ins that
// install this very source tree and run it with the TypeScript loader; everything else is as printed.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, onTestFinished, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { readSnippets } from '../../support/docs.ts';
import { eventually } from '../../support/eventually.ts';
import { useDatabase } from '../../support/postgres/database.ts';
import { temporaryDirectory } from '../../support/temporary.ts';

const context = useDatabase();
const root = packageRoot();
const tsx = pathToFileURL(join(dirname(createRequire(import.meta.url).resolve('tsx/package.json')), 'dist/loader.mjs'));

test('every snippet of the tutorial works as printed', async () => {
  const home = await temporaryDirectory('tutorial');
  const env: Record<string, string> = { ...(await standIns(home)), DATABASE_URL: context.url, PORT: '0' };
  const snippets = await readSnippets('docs/tutorial.md');
  const place = join(home, 'my-jobs');
  // One shell for all, as a reader has one: what a snippet defines is there for the next.
  let script = 'set -eu\n';
  for (const { language, info, text } of snippets) {
    if (language === 'ts') script += `cat > ${info} <<'SNIPPET'\n${text}SNIPPET\n`;
    else if (info === 'daemon') {
      await runShell(script, home, env);
      script = `set -eu\ncd my-jobs\n${await startDaemon(text, place, env)}`;
    } else if (info === '') script += text;
  }
  const text = await runShell(script, home, env);
  expect(text).toContain('PAUSED');
  expect(text).toContain('collect completed, render pending, send pending');
  expect(text).toContain('SUCCESS, 100 %, collect completed, render completed, send completed');
  expect(text).toMatch(/# pass 2/);
});

/** A PATH whose `npm install ../leasehold` links this tree, and whose `npx` runs what it would have installed. */
async function standIns(home: string): Promise<Record<string, string>> {
  const bin = join(home, 'bin');
  await mkdir(bin, { recursive: true });
  const node = `exec "${process.execPath}" --import "${tsx.href}"`;
  const manifest = {
    name: 'leasehold',
    type: 'module',
    exports: { '.': './server/index.ts', './testing': './server/testing/index.ts' },
  };
  await writeFile(join(home, 'leasehold.json'), JSON.stringify(manifest));
  const scripts = {
    npm: `if [ "$1 $2" = "init -y" ]; then echo '{"type":"module"}' > package.json; exit; fi
[ "$1 $2" = "install ../leasehold" ] || exit 0
mkdir -p node_modules/leasehold && cp "${home}/leasehold.json" node_modules/leasehold/package.json
ln -s "${root}/server" node_modules/leasehold/server`,
    npx: `what=$1; shift
case $what in
  leaseholdd) ${node} "${root}/server/main.ts" ;;
  tsx) ${node} "$@" ;;
esac`,
  };
  for (const [name, text] of Object.entries(scripts)) {
    await writeFile(join(bin, name), `#!/bin/sh\nset -e\n${text}\n`);
    await chmod(join(bin, name), 0o755);
  }
  return { PATH: `${bin}:${process.env.PATH}`, HOME: home, DEMO_TENANT: 'always', LOG_LEVEL: 'error' };
}

/** Starts it as the reader does, and returns the lines that the reader then types: address and key. */
async function startDaemon(command: string, place: string, env: Record<string, string>): Promise<string> {
  const child: ChildProcess = spawn('bash', ['-c', command.replace('npx', 'exec npx')], {
    cwd: place,
    env,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const ended = once(child, 'exit');
  onTestFinished(async () => {
    child.kill('SIGTERM');
    await ended;
  });
  let screen = '';
  child.stdout?.on('data', (chunk) => (screen += chunk));
  child.stderr?.on('data', (chunk) => (screen += chunk));
  return eventually(() => {
    const url = /running at (\S+)/.exec(screen)?.[1];
    const key = /Key of tenant "demo": (\S+)/.exec(screen)?.[1];
    if (!url || !key) throw new Error(`the daemon printed:\n${screen}`);
    return `export URL=${url}\nexport KEY=${key}\n`;
  });
}

async function runShell(script: string, cwd: string, env: Record<string, string>): Promise<string> {
  const child = spawn('bash', ['-c', script], { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] });
  onTestFinished(() => void child.kill('SIGKILL'));
  let text = '';
  child.stdout.on('data', (chunk) => (text += chunk));
  child.stderr.on('data', (chunk) => (text += chunk));
  const [code] = (await once(child, 'close')) as [number];
  expect(code, text).toBe(0);
  return text;
}
