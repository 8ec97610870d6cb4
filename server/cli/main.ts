#!/usr/bin/env node
// The `leasehold` command. It calls the same functions as the HTTP API.
import { loadEnvFile } from '../kernel/environment.ts';
import { runCli } from './program.ts';

process.exitCode = await runCli(process.argv.slice(2), {
  env: process.env,
  loadEnvFile,
  out: (text) => process.stdout.write(text),
  err: (text) => process.stderr.write(text),
});
