// Runs a definition's code in this thread: the job's `run`, or the phase that the parts name.

import type { JobErrorCode } from '../../jobs/model/job-errors.ts';
import type { JobDefinition } from '../handlers/define-job.ts';
import { Fatal } from '../handlers/handler-errors.ts';
import { Context, type ContextParts } from './context.ts';

export function invokeHere(definition: JobDefinition, parts: ContextParts): unknown {
  const context = new Context(parts);
  const { phase } = parts;
  if (phase === undefined) return definition.run?.(context);
  return definition.phases?.find((one) => one.name === phase.name)?.run(context);
}

/** Was checked at enqueue; the schema may have changed since, and its output is produced here. */
export function parsePayload(definition: JobDefinition, payload: unknown): unknown {
  if (definition.payload === undefined) return payload;
  const parsed = definition.payload.safeParse(payload);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  const field = ['payload', ...(issue?.path ?? [])].join('.');
  throw new Fatal(`${field}: ${issue?.message ?? 'is not valid'}`, { code: 'INVALID_PAYLOAD' satisfies JobErrorCode });
}

/** A state that no longer fits its schema is ignored. */
export function parseCheckpoint(definition: JobDefinition, stored: unknown): unknown {
  if (stored === null || stored === undefined) return undefined;
  if (definition.checkpoint === undefined) return stored;
  const parsed = definition.checkpoint.safeParse(stored);
  return parsed.success ? parsed.data : undefined;
}
