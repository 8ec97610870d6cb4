// Answers a question exactly once. Under the lock of the job, one transaction closes the question, gives the answer to
// the durable call that waits, and wakes the job.
import type { Database, Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { statement, tenant } from '../../database/sql.ts';
import { retryConflicts } from '../../database/sql-errors.ts';
import { problem } from '../../kernel/errors.ts';
import { cancelIn } from '../actions/pause-and-cancel.ts';
import { resumeIn } from '../actions/resume.ts';
import { wakeJobs } from '../finish/due-jobs.ts';
import { lockTargets } from '../lanes/lane.ts';
import { isOnHold, isTerminal, type Status } from '../model/states.ts';
import { findJob } from '../read/read-jobs.ts';
import { checkAnswer } from './answer-schema.ts';
import { budgetStep, decideBudget } from './budget-question.ts';
import { type Question, questionColumns, recordQuestions } from './question.ts';
import { requireOpenLink } from './question-links.ts';
import type { GivenAnswer } from './question-request.ts';
import { readQuestion } from './read-questions.ts';

export interface AnswerRequest {
  questionId: string;
  answer?: Record<string, unknown> | undefined;
  action?: string | undefined;
  /** The actor of the event: `key:<id>` or `link:<id>`. */
  actor: string;
  /** The person who answered; by default the actor. */
  author?: string | undefined;
  /** The link through which the answer came. The answer uses it up. */
  linkId?: string | undefined;
}

const lockStatement = statement(`
  select j.status
    from ${tenant}.jobs j
   where j.id = :jobId
     for update`);

// A separate statement after the lock, because the snapshot of the locking statement is older than the lock.
const lockedStatement = statement(`
  select ${questionColumns}, q.expires_at <= now() as "isOver"
    from ${tenant}.questions q
   where q.id = :questionId`);

type LockedQuestion = Question & { jobStatus: Status; isOver: boolean };

const answerStatement = statement(`
  with q as (
    update ${tenant}.questions q
       set status = 'answered',
           answer = :answer::jsonb,
           action = :action,
           answered_by = :answeredBy,
           closed_at = now()
     where q.id = :questionId
       and q.status = 'open'
    returning q.*
  ),
  ended as (
    update ${tenant}.phases p
       set status = 'completed',
           progress = 100,
           result = :result::jsonb,
           finished_at = q.closed_at
      from q
     where p.job_id = q.job_id
       and p.name = q.step
       and p.status in ('pending', 'running')
  ),
  used as (
    update ${tenant}.question_links l
       set used_at = now()
     where l.id = :linkId::uuid
  ),
  recorded as (
    ${recordQuestions(
      'question.answered',
      'q',
      `jsonb_strip_nulls(jsonb_build_object('answered_by', q.answered_by, 'action', q.action))`,
    )}
  )
  select id from q`);

/**
 * Rejects with 400 if the answer is invalid, and with 409 if the question is closed; the problem says how it was
 * closed.
 */
export async function answerQuestion(db: Database, schema: Schema, request: AnswerRequest): Promise<Question> {
  const known = await requireQuestion(db, schema, request.questionId);
  await retryConflicts(() =>
    db.transaction(async (tx) => {
      // Every change of a job locks in this order: its lane, its row, then the rows that belong to it.
      if (known.targetId !== null) await lockTargets(tx, schema, [known.targetId]);
      const [job] = await lockStatement.query<{ status: Status }>(tx, schema, { jobId: known.jobId });
      const [row] = await lockedStatement.query<LockedQuestion>(tx, schema, { questionId: known.id });
      if (job === undefined || row === undefined) throw notFound();
      const question = { ...row, jobStatus: job.status };
      refuseIfClosed(question);
      if (request.linkId !== undefined) await requireOpenLink(tx, schema, request.linkId, known.id);
      await write(tx, schema, question, request, checkAnswer(question, request));
    }),
  );
  return requireQuestion(db, schema, request.questionId);
}

async function write(
  tx: Queryable,
  schema: Schema,
  question: LockedQuestion,
  { actor, author, linkId }: AnswerRequest,
  given: GivenAnswer,
): Promise<void> {
  const rows = await answerStatement.query(tx, schema, {
    questionId: question.id,
    answer: JSON.stringify(given.answer),
    action: given.action ?? null,
    result: JSON.stringify(given),
    answeredBy: author ?? actor,
    linkId: linkId ?? null,
    actor,
  });
  if (rows.length === 0) throw problem('CONFLICT', 'The question was just closed.');
  if (question.step === budgetStep) {
    await changeStoppedJob(tx, schema, question, { actor, author, given });
  } else if (question.jobStatus === 'WAITING') {
    await wakeJobs(tx, schema, [{ id: question.jobId, targetId: question.targetId }], actor);
  }
}

/** Answers for a job that a budget has stopped: resumes it, with a raised limit or unchanged, or cancels it. */
async function changeStoppedJob(
  tx: Queryable,
  schema: Schema,
  { jobId }: LockedQuestion,
  { actor, author, given }: { actor: string; author: string | undefined; given: GivenAnswer },
): Promise<void> {
  const job = await findJob(tx, schema, jobId);
  if (job === undefined) throw notFound();
  const decision = decideBudget(job.error, given);
  const request = { jobId, actor, author };
  const changed =
    decision === 'cancel'
      ? await cancelIn(tx, schema, job, request)
      : await resumeIn(tx, schema, job, { ...request, budget: decision });
  if (changed === undefined) throw problem('CONFLICT', 'The job has just changed; read it and try again.');
}

export async function requireQuestion(db: Queryable, schema: Schema, id: string): Promise<Question> {
  const question = await readQuestion(db, schema, id);
  if (question === undefined) throw notFound();
  return question;
}

function notFound() {
  return problem('NOT_FOUND', 'There is no such question.');
}

const ended = { answered: 'answered', expired: 'not answered in time', canceled: 'canceled' } as const;

/** While the job is on hold, the time of its questions stands still. */
function refuseIfClosed({ jobStatus, isOver, ...question }: LockedQuestion): void {
  const status = closedStatus(question.status, jobStatus, isOver && !isOnHold(jobStatus));
  if (status === 'open') return;
  const { answer, action, answeredBy, closedAt } = question;
  const by = answeredBy === null ? '' : ` by ${answeredBy}`;
  throw problem(
    'QUESTION_CLOSED',
    `The question was ${ended[status]}${by}${closedAt === null ? '' : ` at ${closedAt}`}.`,
    {
      question_status: status,
      answer,
      action,
      answered_by: answeredBy,
      closed_at: closedAt,
    },
  );
}

function closedStatus(status: Question['status'], jobStatus: Status, isOver: boolean): Question['status'] {
  if (status !== 'open') return status;
  if (isTerminal(jobStatus)) return 'canceled';
  return isOver ? 'expired' : 'open';
}
