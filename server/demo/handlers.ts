// The sample handlers that a daemon runs when HANDLERS names none.
import { fileURLToPath } from 'node:url';
import type { JobDefinition } from '../worker/handlers/define-job.ts';
import { echo, fail, sleep, tokens } from './basics.ts';
import { compute } from './compute.ts';
import { httpCall } from './http-call.ts';
import { pipeline } from './pipeline.ts';

// The file is what a thread loads an isolated one from.
const file = fileURLToPath(import.meta.url);

export const demoHandlers: readonly JobDefinition[] = [echo, sleep, fail, tokens, pipeline, compute, httpCall].map(
  (definition) => ({ ...definition, file }),
);
