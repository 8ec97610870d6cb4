#!/usr/bin/env node
// The program `leaseholdd`. It takes no arguments but --help and --version; everything else is a setting. The daemon is
// loaded only to be run, so that these two are quick.
import { packageVersion } from './kernel/environment.ts';
import { requireNodeVersion } from './kernel/node-version.ts';

const help = `Usage: leaseholdd [--help] [--version]

Runs the Leasehold daemon: the HTTP API, the workers for your job handlers, and
an embedded Postgres unless DATABASE_URL names one. Stops on SIGTERM and SIGINT
after a drain.

It takes its settings from the environment and from the file .env in the working
directory. Some of them:
  HANDLERS      module, or directory of modules, with your job handlers
  DATABASE_URL  the Postgres to use
  PORT          port of the HTTP server (8080)
\`leasehold config\` prints all settings with their values.
`;

const given = readArguments(process.argv.slice(2));
if (given.kind === 'print') process.stdout.write(given.text);
else if (given.kind === 'refuse') {
  process.stderr.write(given.text);
  process.exitCode = 2;
} else {
  requireNodeVersion();
  // The only package with source maps, which contain its whole source and would be kept in memory.
  await Promise.all([import('drizzle-orm'), import('drizzle-orm/pg-core')]);
  // Stack traces name source lines, but only of modules that are loaded after this call: not in the daemon itself.
  process.setSourceMapsEnabled(true);
  const { removeNavigator } = await import('./database/connections/navigator.ts');
  const { runDaemon, explainStartError } = await import('./daemon/run-daemon.ts');
  removeNavigator();
  await runDaemon().catch((error: unknown) => {
    process.stderr.write(`leasehold: ${explainStartError(error)}\n`);
    process.exit(1);
  });
}

type Arguments = { kind: 'start' } | { kind: 'print'; text: string } | { kind: 'refuse'; text: string };

function readArguments(args: readonly string[]): Arguments {
  const [first] = args;
  if (first === undefined) return { kind: 'start' };
  if (first === '--help' || first === '-h') return { kind: 'print', text: help };
  if (first === '--version' || first === '-V') return { kind: 'print', text: `${packageVersion()}\n` };
  return {
    kind: 'refuse',
    text: `leaseholdd takes no argument ${JSON.stringify(first)}; settings come from the environment or .env (see leaseholdd --help)\n`,
  };
}
