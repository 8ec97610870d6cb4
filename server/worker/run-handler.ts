// One attempt: runs the definition's code against a context and says how it ended. Never throws,
// and resolves only when the code has really ended and everything it reported is stored.
import { createContext } from './context.ts';
import type { JobDefinition } from './define-job.ts';
import type { HandlerEnd, HandlerRun } from './handler-run.ts';
import { isRecoverable, toJobError } from './job-error.ts';

export type { HandlerEnd, HandlerRun };

export async function runHandler(definition: JobDefinition, run: HandlerRun): Promise<HandlerEnd> {
  const context = createContext(definition, run);
  try {
    const result = await definition.run?.(context);
    return { kind: 'completed', result: result ?? null };
  } catch (error) {
    return { kind: 'failed', error: toJobError(error), recoverable: isRecoverable(error, run.job, definition.retry) };
  }
}
