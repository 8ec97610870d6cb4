// One attempt: runs the definition's code against a context and says how it ended. Never throws,
// and resolves only when the code has really ended and everything it reported is stored.

import type { JobDefinition } from '../handlers/define-job.ts';
import { isRecoverable, toJobError } from '../handlers/job-error.ts';
import type { ContextParts } from './context.ts';
import { DatabaseEffects } from './database-effects.ts';
import type { Effects } from './effects.ts';
import type { HandlerEnd, HandlerRun } from './handler-run.ts';
import { invokeHere, parseCheckpoint, parsePayload } from './invoke.ts';
import type { Invoke } from './run-phase.ts';
import { runPhases } from './run-phases.ts';
import { toStorable } from './storable.ts';

export type { HandlerEnd, HandlerRun };

/** One function and few objects: thousands of jobs a second pass here. */
export async function runHandler(definition: JobDefinition, run: HandlerRun): Promise<HandlerEnd> {
  let effects: Effects | undefined;
  let end: HandlerEnd;
  try {
    const parts = createParts(definition, run, () => {
      effects ??= new DatabaseEffects(run);
      return effects;
    });
    const { isolate, phases } = definition;
    const invoke: Invoke =
      isolate === undefined ? (given) => invokeHere(definition, given) : (given, killer) => isolate(given, killer.kill);
    end =
      phases === undefined
        ? endOf(await invoke(parts, run), parts, run)
        : await runPhases({ phases, run, parts, isolated: isolate !== undefined, invoke });
  } catch (error) {
    end = { kind: 'failed', error: toJobError(error), recoverable: isRecoverable(error, run.job, definition.retry) };
  }
  if (effects !== undefined) await effects.flush();
  return end;
}

function endOf(result: unknown, parts: Parts, run: HandlerRun): HandlerEnd {
  const stored = toStorable(result, run.config.resultLimitBytes, 'The result');
  if (!stored.ok) return { kind: 'failed', error: stored.error, recoverable: false };
  if (parts.partial === undefined) return { kind: 'completed', result: stored.value };
  return { kind: 'partial', result: stored.value, error: { code: 'PARTIAL', message: parts.partial } };
}

interface Parts extends ContextParts {
  /** Why only a part was done, if the handler said so. */
  partial: string | undefined;
}

function createParts(definition: JobDefinition, run: HandlerRun, effects: () => Effects): Parts {
  const { job, tenant, leaseId } = run;
  const parts: Parts = {
    job: {
      id: job.id,
      type: job.type,
      tenant: tenant.slug,
      targetId: job.targetId,
      attempt: job.attempt,
      maxAttempts: job.maxAttempts,
      createdAt: job.createdAt,
      parentId: job.parentId,
      author: job.author,
    },
    leaseId,
    stored: job,
    payload: parsePayload(definition, job.payload),
    stopping: run,
    lastCheckpoint: parseCheckpoint(definition, job.checkpoint),
    results: {},
    effects,
    partial: undefined,
    onPartial: (reason) => {
      parts.partial = reason;
    },
  };
  return parts;
}
