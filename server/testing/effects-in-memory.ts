// The effects of a handler without a database. Its reports are kept for the test, and its waits end at once.

import { Fatal } from '../durable/handler-errors.ts';
import { toStorable } from '../durable/storable.ts';
import type { StoredEvent } from '../jobs/attempt/event-waits.ts';
import type { StoredStep } from '../jobs/attempt/steps.ts';
import type { ChildEnd } from '../jobs/flows/fenced-children.ts';
import { findSpent, type Spent, sumOf, type Units } from '../jobs/model/job-budget.ts';
import { jobError } from '../jobs/model/job-errors.ts';
import type { PhaseStatus } from '../jobs/model/job-values.ts';
import { foreverMs, type Waiting } from '../jobs/model/waiting.ts';
import { checkAnswer } from '../jobs/questions/answer-schema.ts';
import type { QuestionState } from '../jobs/questions/ask.ts';
import type { AskedQuestion, GivenAnswer } from '../jobs/questions/question-request.ts';
import { newId } from '../kernel/ids.ts';
import { type Effects, overallProgress, type PhaseScope } from '../worker/attempt/handler-run.ts';
import type { Remembered, TestOptions } from './test-run.ts';

interface Limits {
  answers: NonNullable<TestOptions['answers']>;
  childResult(child: { type: string; payload: unknown }, position: number, call: string): unknown;
  tokenLimit: number;
  resultLimitBytes: number;
  budget: Units;
  onOverspent(spent: Spent): void;
  onTimeout(name: string, seconds: number): void;
  onSuspend(waiting: Waiting, leftMs: number): void;
}

/** A step or phase that counts as completed. */
export type GivenCall = Pick<StoredStep, 'name' | 'kind' | 'position' | 'status' | 'result'>;

/** `given` are the calls and phases that count as completed. */
export function effectsInMemory(
  limits: Limits,
  tokensUsed: number,
  given: readonly GivenCall[],
  givenEvents: Record<string, readonly unknown[]>,
): { effects: Effects; remembered: Remembered; phases: Map<string, PhaseStatus> } {
  const children = new Map<string, { id: string }>();
  const events = new Map(Object.entries(givenEvents).map(([name, data]) => [name, [...data]]));
  const remembered: Remembered = {
    progress: [],
    logs: [],
    tokensUsed,
    usage: {},
    children: [],
    checkpoint: undefined,
    leaseAsserts: 0,
    sleeps: [],
    questions: [],
    eventWaits: [],
    steps: {},
  };
  const phases = new Map<string, PhaseStatus>();
  const remember = ({ kind, name, status, result }: GivenCall) => {
    if (kind === 'phase') phases.set(name, status);
    else if (status === 'completed') remembered.steps[name] = result;
  };
  given.forEach(remember);
  const effects: Effects = {
    steps: {
      load: async () => ({
        steps: given.map((call) => ({ ...call, parallel: true, error: null, waitsUntil: null, leftMs: null })),
      }),
      async save(changes) {
        for (const change of changes) remember({ ...change, kind: change.kind ?? 'step', result: change.result });
        return undefined;
      },
      stop: async () => {},
      timeOut: async (name, seconds) => limits.onTimeout(name, seconds),
      async openSleep({ name }, end) {
        remembered.sleeps.push({ name, ...end });
        return { until: 'until' in end ? end.until : new Date(Date.now() + end.ms).toISOString(), leftMs: 0 };
      },
      async children({ call, open }) {
        const jobs = open !== undefined && 'jobs' in open ? open.jobs : [];
        const made = jobs.map(({ type, payload, ...options }) => ({ id: newId(), type, payload, options }));
        remembered.children.push(...made);
        const ids = open !== undefined && 'ids' in open ? open.ids : made.map(({ id }) => id);
        const children = ids.flatMap((id) => remembered.children.find((child) => child.id === id) ?? []);
        const ends = children.map((child, n): ChildEnd => {
          const result = limits.childResult(child, n, call.name);
          return { id: child.id, type: child.type, status: 'SUCCESS', result: result ?? null, error: null };
        });
        return { total: ids.length, unfinished: 0, failed: null, bytes: 0, ends };
      },
      async openQuestion({ name }, question) {
        remembered.questions.push({ name, ...question });
        return answerFor(name, question, limits.answers);
      },
      closeQuestions: async () => {},
      async openEventWait({ name }, { event, match, ms }) {
        remembered.eventWaits.push({ name, event, match, timeoutSeconds: ms === null ? null : ms / 1000 });
        const data = events.get(event)?.shift();
        if (data !== undefined) return { kind: 'received', event: toReceived(event, data) };
        return ms === null ? { kind: 'open', until: undefined, leftMs: foreverMs } : { kind: 'timedOut' };
      },
      suspend: async (waiting, leftMs) => limits.onSuspend(waiting, leftMs),
    },
    progress(percent: number, message: string | undefined, phase: PhaseScope | undefined) {
      remembered.progress.push({ percent, overall: overallProgress(percent, phase), message, phase: phase?.name });
    },
    log: (level, message, data) => void remembered.logs.push({ level, message, data }),
    addUsage({ tokens = 0, ...units }) {
      remembered.tokensUsed += tokens;
      for (const [unit, amount] of Object.entries(units)) {
        remembered.usage[unit] = sumOf(remembered.usage[unit], amount);
      }
      const job = { type: '', targetId: null, tokenLimit: limits.tokenLimit, budget: limits.budget };
      const spent = findSpent(job, { ...remembered.usage, tokens: remembered.tokensUsed }, { tokenLimit: 0 });
      if (spent !== undefined) limits.onOverspent(spent);
    },
    async assertLease() {
      remembered.leaseAsserts += 1;
      return { validUntilMs: Number.POSITIVE_INFINITY };
    },
    async enqueue(key, type, payload, options) {
      const known = children.get(key);
      if (known !== undefined) return known;
      const child = { id: newId() };
      children.set(key, child);
      remembered.children.push({ ...child, type, payload, options });
      return child;
    },
    async checkpoint(state) {
      const stored = toStorable(state, limits.resultLimitBytes, 'The checkpoint');
      if (!stored.ok) throw new Fatal(stored.error.message, { code: stored.error.code });
      remembered.checkpoint = stored.value;
    },
    async flush() {},
  };
  return { effects, remembered, phases };
}

/** Returns the answer of the test, checked like an answer of a person. */
function answerFor(name: string, question: AskedQuestion, answers: Limits['answers']): QuestionState {
  const given = answers[name] ?? answers[question.title];
  if (given === undefined) {
    throw new Fatal(`the test has no answer to "${question.title}"; give one in answers["${name}"]`);
  }
  if (given === 'timeout' && question.on_timeout === 'fail') {
    const message = `Nobody answered the question "${question.title}" in time.`;
    return { status: 'failed', error: { ...jobError('QUESTION_EXPIRED', message), disposition: 'fatal' } };
  }
  const { action, ...answer } = given === 'timeout' ? flat(question.on_timeout as GivenAnswer) : given;
  return { status: 'completed', result: checkAnswer(question, { answer, action: action as string | undefined }) };
}

function flat({ answer, action }: GivenAnswer): Record<string, unknown> {
  return { ...answer, ...(action !== undefined && { action }) };
}

function toReceived(name: string, data: unknown): StoredEvent {
  return { id: newId(), name, data, receivedAt: new Date().toISOString() };
}
