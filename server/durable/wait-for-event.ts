// The durable call that waits for an event from outside: checks the handler's request and returns the event.

import type { z } from 'zod';
import type { StoredEvent, WantedEvent } from '../jobs/attempt/event-waits.ts';
import type { StepCall, StoredStep } from '../jobs/attempt/steps.ts';
import type { JobErrorCode } from '../jobs/model/job-errors.ts';
import { pathNameField } from '../kernel/fields.ts';
import { maxSeconds } from '../kernel/limits.ts';
import { refuseUnknownOptions, timeoutSecondsOf } from './call-options.ts';
import type { DurableCalls } from './durable-calls.ts';
import type { EventWaitOptions, ReceivedEvent } from './durable-context.ts';
import { Fatal } from './handler-errors.ts';
import { toStorable } from './storable.ts';
import { stepError } from './stored-calls.ts';

// Stored with the job and shown to people.
const matchLimitBytes = 8192;
const eventName = pathNameField();

/** Returns undefined if no event came in time. Throws a TypeError or RangeError for an invalid request. */
export async function waitForEvent(
  durable: DurableCalls,
  name: string,
  options: EventWaitOptions,
): Promise<ReceivedEvent | undefined> {
  const wanted = toWantedEvent(name, options);
  const event = await durable.call('event', options.name ?? durable.numbered(`event:${name}`), (call, stored) =>
    wait(durable, call, stored, wanted),
  );
  return event && withCheckedData(event, options.schema);
}

async function wait(
  durable: DurableCalls,
  call: StepCall,
  stored: StoredStep | undefined,
  wanted: WantedEvent,
): Promise<StoredEvent | undefined> {
  const { event, match } = wanted;
  const known = stored?.result as StoredEvent | null | undefined;
  if (stored?.status === 'skipped') return undefined;
  if (stored?.status === 'completed' && known) {
    if (known.name === event) return known;
    const message = `The durable call "${call.name}" of an earlier run got the event "${known.name}"; this run waits for "${event}".`;
    throw stepError('STEP_ORDER_CHANGED', message);
  }
  const found = await durable.store.openEventWait(call, wanted);
  if (found.kind === 'received') return found.event;
  if (found.kind === 'timedOut') return undefined;
  const { until, leftMs } = found;
  return durable.suspend({ kind: 'event', step: call.name, until, event, ...(match !== null && { match }) }, leftMs);
}

function toWantedEvent(name: string, options: EventWaitOptions): WantedEvent {
  refuseUnknownOptions('waitForEvent', options, ['match', 'timeout', 'timeoutSeconds', 'schema', 'name']);
  const { match } = options;
  const timeoutSeconds = timeoutSecondsOf('waitForEvent', options);
  const checked = eventName.safeParse(name);
  if (!checked.success) throw new TypeError(`the name of an event ${checked.error.issues[0]?.message}`);
  if (timeoutSeconds !== undefined && !(timeoutSeconds >= 0 && timeoutSeconds <= maxSeconds)) {
    throw new RangeError(`timeoutSeconds must be a number from 0 to ${maxSeconds}`);
  }
  return {
    event: name,
    match: match === undefined ? null : checkedMatch(match),
    ms: timeoutSeconds === undefined ? null : timeoutSeconds * 1000,
  };
}

function checkedMatch(match: Record<string, unknown>): Record<string, unknown> {
  if (typeof match !== 'object' || match === null || Array.isArray(match)) {
    throw new TypeError('match must be an object: the fields that the data of the event must have');
  }
  const stored = toStorable(match, matchLimitBytes, 'match');
  if (!stored.ok) throw new TypeError(stored.error.message);
  return stored.value as Record<string, unknown>;
}

function withCheckedData(event: StoredEvent, schema: z.ZodType | undefined): ReceivedEvent {
  if (schema === undefined) return event;
  const parsed = schema.safeParse(event.data);
  if (parsed.success) return { ...event, data: parsed.data };
  const issue = parsed.error.issues[0];
  const field = ['data', ...(issue?.path ?? [])].join('.');
  throw new Fatal(`Event "${event.name}" (${event.id}): ${field}: ${issue?.message ?? 'is not valid'}`, {
    code: 'INVALID_EVENT' satisfies JobErrorCode,
    details: { event: event.name, id: event.id, field },
  });
}
