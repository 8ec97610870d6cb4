// The durable calls of jobs as they should be, in memory: stored steps, questions and waits for events. The calls of a job
// are one after the other, so that at most the last one is open.
import { isOnHold, isTerminal } from '../../../server/jobs/model/states.ts';
import type { ModelJob } from './engine-model.ts';

export interface ModelCall {
  name: string;
  kind: 'step' | 'question' | 'event';
  status: 'open' | 'completed' | 'failed' | 'skipped' | 'cancelled';
  /** The value for the handler: the result of a step, the answer, or the id of the event. */
  result: unknown;
  /** Its time has passed, which is found out when the job wakes or runs. */
  isOver: boolean;
  question?: { status: 'open' | 'answered' | 'expired' | 'canceled'; answer: unknown; by: string | null };
  plan: CallPlan;
  /** The events that were recorded about it, each of them once. */
  log: string[];
}

/** A call in the code of the handler. */
export interface CallPlan {
  kind: ModelCall['kind'];
  /** An event: only one whose data contains this. A question: it has an answer when its time is over. */
  isSpecial: boolean;
  /** A wait for an event: with a time limit. */
  isLimited: boolean;
}

export const defaultAnswer = { n: -1 };

interface ModelEvent {
  id: string;
  name: string;
  fits: boolean;
}

export class DurableModel {
  readonly received: ModelEvent[] = [];

  eventName(job: ModelJob): string {
    return `event-${job.target ?? 'none'}`;
  }

  /** The call that a run makes after those that have ended. */
  nextCall(job: ModelJob, plan: CallPlan): ModelCall {
    const last = job.calls.at(-1);
    if (last?.status === 'open') return last;
    const name = `${plan.kind}#${job.calls.length + 1}`;
    return { name, kind: plan.kind, status: 'open', result: null, isOver: false, plan, log: [] };
  }

  /** The run of the lease holder makes the call: it ends at once, or is open afterwards. */
  reach(job: ModelJob, call: ModelCall, value: unknown): void {
    const isNew = !job.calls.includes(call);
    if (isNew) job.calls.push(call);
    if (call.kind === 'step') complete(call, value, 'job.step_completed');
    else if (call.kind === 'question') this.#reachQuestion(call, isNew);
    else this.#reachEvent(job, call);
  }

  #reachQuestion(call: ModelCall, isNew: boolean): void {
    if (isNew) {
      call.question = { status: 'open', answer: null, by: null };
      call.log.push('question.asked');
    }
    if (call.isOver) this.expireQuestion(call);
  }

  #reachEvent(job: ModelJob, call: ModelCall): void {
    const early = this.received.find((event, n) => n >= job.since && matchesWait(this, job, event));
    if (early) complete(call, early.id, 'job.event_received');
    if (!call.isOver) return;
    call.status = 'skipped';
    call.log.push('job.event_missed');
  }

  /** Delivers it once to each job that waits for it. Returns those that wake. */
  receive(event: ModelEvent, jobs: readonly ModelJob[]): ModelJob[] {
    this.received.push(event);
    const ended = jobs.filter((job) => !isTerminal(job.status) && matchesWait(this, job, event));
    for (const job of ended) complete(job.calls.at(-1) as ModelCall, event.id, 'job.event_received');
    return ended.filter((job) => job.status === 'WAITING');
  }

  /** The result of an answer. While the job is on hold, the time of its question stands still. */
  questionStatus(job: ModelJob, { question, isOver }: ModelCall): string | undefined {
    return question?.status === 'open' && isOver && !isOnHold(job.status) ? 'expired' : question?.status;
  }

  answer(call: ModelCall, answer: unknown, by: string): void {
    call.question = { status: 'answered', answer, by };
    complete(call, { answer }, 'question.answered');
  }

  expireQuestion(call: ModelCall): void {
    const answer = call.plan.isSpecial ? defaultAnswer : null;
    call.question = { status: 'expired', answer, by: null };
    call.log.push('question.expired');
    call.status = answer === null ? 'failed' : 'completed';
    call.result = answer === null ? null : { answer };
  }

  /** The job has ended: its question is closed, and a person who ended it has ended its call too. */
  endJob(job: ModelJob, status: 'cancelled' | 'skipped' | undefined): void {
    const call = openCall(job);
    if (call === undefined) return;
    if (status !== undefined) call.status = status;
    if (call.question?.status !== 'open') return;
    call.question.status = 'canceled';
    call.log.push('question.canceled');
  }
}

export function openCall({ calls }: ModelJob): ModelCall | undefined {
  const last = calls.at(-1);
  return last?.status === 'open' ? last : undefined;
}

function complete(call: ModelCall, result: unknown, event: string): void {
  Object.assign(call, { status: 'completed', result });
  call.log.push(event);
}

function matchesWait(model: DurableModel, job: ModelJob, { id, name, fits }: ModelEvent): boolean {
  const call = openCall(job);
  if (call?.kind !== 'event' || call.isOver || name !== model.eventName(job)) return false;
  if (job.calls.some(({ kind, result }) => kind === 'event' && result === id)) return false;
  return fits || !call.plan.isSpecial;
}
