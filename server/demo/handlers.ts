// The sample handlers that a daemon runs when HANDLERS names none.
import type { JobDefinition } from '../worker/define-job.ts';
import { echo, fail, sleep, tokens } from './basics.ts';
import { httpCall } from './http-call.ts';
import { pipeline } from './pipeline.ts';

export const demoHandlers: readonly JobDefinition[] = [echo, sleep, fail, tokens, pipeline, httpCall];
