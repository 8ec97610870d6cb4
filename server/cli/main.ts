#!/usr/bin/env node
// The `leasehold` command: over HTTP through the client, or on the database with the functions of the HTTP API.
import { loadEnvFile } from '../kernel/environment.ts';
import { runCli } from './program.ts';

const { stdout } = process;

// `leasehold jobs list | head`: the reader has enough.
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
    ? { columns: () => stdout.columns, rows: () => stdout.rows, colours: (process.env.NO_COLOR ?? '') === '' }
    : undefined,
  interrupted: () => {
    const interrupt = new AbortController();
    // The second Ctrl-C ends the process as always.
    process.once('SIGINT', () => interrupt.abort());
    return interrupt.signal;
  },
});
