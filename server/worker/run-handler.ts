// One attempt: runs the definition's code against a context and says how it ended. Never throws,
// and resolves only when the code has really ended and everything it reported is stored.
import { Context, type ContextParts } from './context.ts';
import { DatabaseEffects } from './database-effects.ts';
import type { JobDefinition } from './define-job.ts';
import type { Effects } from './effects.ts';
import { Fatal } from './handler-errors.ts';
import type { HandlerEnd, HandlerRun } from './handler-run.ts';
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
    const { phases } = definition;
    if (phases === undefined) return await runOnce(definition, run, parts);
    const isolated = definition.isolation === 'thread';
    return await runPhases({ phases, run, parts, isolated, invoke: invokerOf(definition) });
  } catch (error) {
    return failed(error, definition, run);
  }
}

async function runOnce(definition: JobDefinition, run: HandlerRun, parts: ContextParts): Promise<HandlerEnd> {
  let partial: string | undefined;
  const context = new Context({ ...parts, onPartial: (reason) => (partial = reason) });
  const stored = toStorable(
    await invokerOf(definition)(undefined, context, run.kill),
    run.config.resultLimitBytes,
    'The result',
  );
  if (!stored.ok) return { kind: 'failed', error: stored.error, recoverable: false };
  if (partial === undefined) return { kind: 'completed', result: stored.value };
  return { kind: 'partial', result: stored.value, error: { code: 'PARTIAL', message: partial } };
}

function invokerOf(definition: JobDefinition): Invoke {
  return async (phase, context) => {
    if (phase === undefined) return definition.run?.(context);
    return definition.phases?.find((p) => p.name === phase)?.run(context);
  };
}

function createParts(definition: JobDefinition, run: HandlerRun, effects: () => Effects): ContextParts {
  const { job, tenant, leaseId, signal } = run;
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
    payload: parsePayload(definition, job.payload),
    signal,
    lastCheckpoint: parseCheckpoint(definition, job.checkpoint),
    results: {},
    effects,
    onPartial: () => {},
  };
}

/** Checked at enqueue; the schema may have changed since, and its output is made here. */
function parsePayload(definition: JobDefinition, payload: unknown): unknown {
  if (definition.payload === undefined) return payload;
  const parsed = definition.payload.safeParse(payload);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  const field = ['payload', ...(issue?.path ?? [])].join('.');
  throw new Fatal(`${field}: ${issue?.message ?? 'is not valid'}`, { code: 'INVALID_PAYLOAD' });
}

/** A state that no longer fits its schema is as good as none. */
function parseCheckpoint(definition: JobDefinition, stored: unknown): unknown {
  if (stored === null || stored === undefined) return undefined;
  if (definition.checkpoint === undefined) return stored;
  const parsed = definition.checkpoint.safeParse(stored);
  return parsed.success ? parsed.data : undefined;
}

function failed(error: unknown, definition: JobDefinition, run: HandlerRun): HandlerEnd {
  return { kind: 'failed', error: toJobError(error), recoverable: isRecoverable(error, run.job, definition.retry) };
}
