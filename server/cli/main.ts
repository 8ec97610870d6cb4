#!/usr/bin/env node
// The `leasehold` command: over HTTP through the client, or on the database with the functions of the HTTP API.
import { requireNodeVersion } from '../kernel/node-version.ts';

requireNodeVersion();
const { loadEnvFile } = await import('../kernel/environment.ts');
const { runCli } = await import('./program.ts');
const { stdout } = process;

// `leasehold jobs list | head`: the reader has closed the pipe.
stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error;
  process.exit(0);
});

process.exitCode = await runCli(process.argv.slice(2), {
  env: process.env,
  loadEnvFile,
  out: (text) => stdout.write(text),
  err: (text) => process.stderr.write(text),
  screen: stdout.isTTY
    ? {
        // A terminal that does not know its size, such as a serial line, says 0.
        columns: () => stdout.columns || 80,
        rows: () => stdout.rows || 24,
        colours: stdout.hasColors(),
      }
    : undefined,
  interrupted: () => {
    const interrupt = new AbortController();
    // A second signal ends the process, as by default.
    for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => interrupt.abort());
    return interrupt.signal;
  },
});
