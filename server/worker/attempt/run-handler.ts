// Runs the code of one attempt with a context and returns how it ended. Never rejects. Resolves only when the code has
// returned and all its reports are stored.

import { assertComplete } from '../../durable/durable-functions.ts';
import { isRecoverable, toJobError } from '../../durable/job-error.ts';
import { isLarge, type Storable, toStorable, toStorableInTurns } from '../../durable/storable.ts';
import { jobError } from '../../jobs/model/job-errors.ts';
import { JsonText } from '../../kernel/json/json-text.ts';
import type { JobDefinition } from '../handlers/define-job.ts';
import type { ContextParts } from './context.ts';
import { invokeHere, parseCheckpoint, parsePayload } from './context.ts';
import { DatabaseEffects } from './database-effects.ts';
import type { Effects, HandlerEnd, HandlerRun } from './handler-run.ts';
import { runPhases } from './run-all-phases.ts';
import type { Invoke } from './run-phase.ts';

export type { HandlerEnd, HandlerRun };

/**
 * One function with few objects, because thousands of jobs a second run through it. The test kit gives effects that
 * keep in memory what a daemon stores.
 */
export async function runHandler(definition: JobDefinition, run: HandlerRun, given?: Effects): Promise<HandlerEnd> {
  let effects = given;
  let end: HandlerEnd;
  let parts: Parts | undefined;
  try {
    parts = createParts(definition, run, () => {
      effects ??= new DatabaseEffects(run);
      return effects;
    });
    const { isolate, phases } = definition;
    const invoke: Invoke =
      isolate === undefined ? (given) => invokeHere(definition, given) : (given, killer) => isolate(given, killer.kill);
    if (phases === undefined) {
      const result = await invoke(parts, run);
      const limit = run.config.resultLimitBytes;
      const stored = isLarge(result)
        ? await toStorableInTurns(result, limit, 'The result')
        : toStorable(result, limit, 'The result');
      end = endOf(stored, parts);
    } else {
      end = await runPhases({ phases, run, parts, isolated: isolate !== undefined, invoke });
    }
    // A thread has compared its own calls. Phases are compared when they are opened.
    if (isolate === undefined && phases === undefined && end.kind !== 'failed') {
      const compared = assertComplete(parts, run.job.attempt <= 1);
      if (compared !== undefined) await compared;
    }
  } catch (error) {
    if (parts?.durable !== undefined) await parts.durable.reopen(error).catch(() => {});
    end = { kind: 'failed', error: toJobError(error), recoverable: isRecoverable(error, run.job, definition.retry) };
  }
  if (effects !== undefined) await effects.flush();
  return end;
}

function endOf(stored: Storable, parts: Parts): HandlerEnd {
  if (!stored.ok) return { kind: 'failed', error: stored.error, recoverable: false };
  const { value: result, text } = stored;
  const resultText = text === undefined ? undefined : new JsonText(text);
  if (parts.partial === undefined) return { kind: 'completed', result, resultText };
  return { kind: 'partial', result, resultText, error: jobError('PARTIAL', parts.partial) };
}

interface Parts extends ContextParts {
  /** The reason of a partial result, if the handler reported one. */
  partial: string | undefined;
}

export function createParts(definition: JobDefinition, run: HandlerRun, effects: () => Effects): Parts {
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
    releasesLane: definition.whileWaiting === 'release',
    effects,
    partial: undefined,
    onPartial: (reason) => {
      parts.partial = reason;
    },
  };
  return parts;
}
