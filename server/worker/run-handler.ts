// One attempt: runs the definition's code against a context and says how it ended. Never throws,
// and resolves only when the code has really ended and everything it reported is stored.
import type { ContextParts } from './context.ts';
import { DatabaseEffects } from './database-effects.ts';
import type { JobDefinition } from './define-job.ts';
import type { Effects } from './effects.ts';
import type { HandlerEnd, HandlerRun } from './handler-run.ts';
import { invokeHere, parseCheckpoint, parsePayload } from './invoke.ts';
import { isRecoverable, toJobError } from './job-error.ts';
import { runPhases } from './phases.ts';
import type { Invoke } from './run-phase.ts';
import { toStorable } from './storable.ts';

export type { HandlerEnd, HandlerRun };

export async function runHandler(definition: JobDefinition, run: HandlerRun): Promise<HandlerEnd> {
  let effects: Effects | undefined;
  const end = await runCode(definition, run, () => {
    effects ??= new DatabaseEffects(run);
    return effects;
  });
  await effects?.flush();
  return end;
}

async function runCode(definition: JobDefinition, run: HandlerRun, effects: () => Effects): Promise<HandlerEnd> {
  try {
    const parts = createParts(definition, run, effects);
    const { isolate } = definition;
    const invoke: Invoke =
      isolate === undefined ? (given) => invokeHere(definition, given) : (given, killer) => isolate(given, killer.kill);
    const { phases } = definition;
    if (phases === undefined) return await runOnce(invoke, run, parts);
    return await runPhases({ phases, run, parts, isolated: isolate !== undefined, invoke });
  } catch (error) {
    const recoverable = isRecoverable(error, run.job, definition.retry);
    return { kind: 'failed', error: toJobError(error), recoverable };
  }
}

async function runOnce(invoke: Invoke, run: HandlerRun, parts: ContextParts): Promise<HandlerEnd> {
  let partial: string | undefined;
  parts.onPartial = (reason) => {
    partial = reason;
  };
  const stored = toStorable(await invoke(parts, run), run.config.resultLimitBytes, 'The result');
  if (!stored.ok) return { kind: 'failed', error: stored.error, recoverable: false };
  if (partial === undefined) return { kind: 'completed', result: stored.value };
  return { kind: 'partial', result: stored.value, error: { code: 'PARTIAL', message: partial } };
}

function createParts(definition: JobDefinition, run: HandlerRun, effects: () => Effects): ContextParts {
  const { job, tenant, leaseId } = run;
  return {
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
    get signal() {
      return run.signal;
    },
    lastCheckpoint: parseCheckpoint(definition, job.checkpoint),
    results: {},
    effects,
    onPartial: () => {},
  };
}
