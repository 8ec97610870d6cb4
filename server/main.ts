#!/usr/bin/env node
// The program `leaseholdd`: its arguments. The daemon is loaded only to be run, so that --version and --help are quick.
import { readArguments } from './daemon/arguments.ts';

const given = readArguments(process.argv.slice(2));
if (given.kind === 'print') process.stdout.write(given.text);
else if (given.kind === 'refuse') {
  process.stderr.write(given.text);
  process.exitCode = 2;
} else {
  const { runDaemon, explainStartError } = await import('./daemon/run-daemon.ts');
  await runDaemon().catch((error: unknown) => {
    process.stderr.write(`leasehold: ${explainStartError(error)}\n`);
    process.exit(1);
  });
}
