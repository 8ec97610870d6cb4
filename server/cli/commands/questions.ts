// leasehold questions: lists, shows and answers the questions of jobs, and creates links for people without a key.
import type { Command } from 'commander';
import type { Question } from '../../client/generated/api-types.ts';
import { problem } from '../../kernel/errors.ts';
import { type ConnectionOptions, connect, withConnection } from '../connection.ts';
import { facts, fitTable } from '../output.ts';
import type { Session } from '../session.ts';
import { readJson } from './job-reads.ts';

interface ListFlags extends ConnectionOptions {
  status?: Question['status'] | 'all';
  assignee?: string;
  job?: string;
  target?: string;
  limit?: string;
}

interface AnswerFlags extends ConnectionOptions {
  action?: string;
  author?: string;
}

interface LinkFlags extends ConnectionOptions {
  recipient?: string;
  expiresIn?: string;
}

export function addQuestionCommands(program: Command, session: Session): void {
  const questions = program.command('questions').description('list, show and answer what jobs ask people');
  withConnection(questions.command('list'))
    .description('list questions, newest first')
    .option('--status <status>', 'open, answered, expired, canceled or all', 'open')
    .option('--assignee <name>', 'only questions for this person')
    .option('--job <id>', 'only questions of this job')
    .option('--target <id>', 'only questions of this target')
    .option('--limit <n>', 'how many', '50')
    .action(async (flags: ListFlags) => {
      const { status, assignee, job: jobId, target: targetId } = flags;
      const filter = { status: status === 'all' ? undefined : status, assignee, jobId, targetId };
      const found = await (await connect(session, flags)).questions.list(filter).take(Number(flags.limit) || 50);
      const rows = found.map((q) => [q.id, q.status, q.expires_at ?? 'never', q.assignees.join(', '), q.title]);
      const headings = ['ID', 'STATUS', 'UNTIL', 'ASSIGNEES', 'QUESTION'];
      session.print(found, found.length === 0 ? 'no questions' : fitTable(session.terminal.screen, headings, rows));
    });
  withConnection(questions.command('show <question>'))
    .description('show a question, its fields and its actions')
    .action(async (id: string, options: ConnectionOptions) => {
      const question = await (await connect(session, options)).questions.get(id);
      session.print(question, questionText(question));
    });
  withConnection(questions.command('answer <question> [answer]'))
    .description('answer a question; the answer is JSON, and @file reads a file')
    .option('--action <name>', 'the action, if the question has any')
    .option('--author <name>', 'who answers')
    .action(async (id: string, text: string | undefined, flags: AnswerFlags) => {
      const answer = text === undefined ? {} : readJson(text, 'the answer');
      if (typeof answer !== 'object' || answer === null) throw problem('INVALID_FIELD', 'the answer must be an object');
      const given = { answer: answer as Record<string, unknown>, action: flags.action, author: flags.author };
      const question = await (await connect(session, flags)).questions.answer(id, given);
      session.print(question, `answered by ${question.answered_by}; job ${question.job_id} continues`);
    });
  withConnection(questions.command('link <question>'))
    .description('create a link that opens the form of the question without sign-in')
    .option('--recipient <name>', 'who gets the link; an answer through it is recorded as theirs')
    .option('--expires-in <seconds>', 'default: as long as the question')
    .action(async (id: string, flags: LinkFlags) => {
      const expiresInSeconds = flags.expiresIn === undefined ? undefined : Number(flags.expiresIn);
      const options = { recipient: flags.recipient, expiresInSeconds };
      const link = await (await connect(session, flags)).questions.createLink(id, options);
      session.print(link, `${link.url}\nvalid until ${link.expires_at}, for one answer`);
    });
}

function questionText(question: Question): string {
  const { context, answer } = question;
  return facts({
    id: question.id,
    question: question.title,
    status: question.status,
    job: question.job_id,
    ...(context !== null && { context: typeof context === 'string' ? context : JSON.stringify(context) }),
    fields: JSON.stringify(question.schema.properties ?? {}),
    actions: question.actions.map(({ name }) => name).join(', ') || '-',
    assignees: question.assignees.join(', ') || '-',
    until: question.expires_at ?? 'answered',
    ...(answer !== null && { answer: JSON.stringify(answer), by: String(question.answered_by ?? 'timeout') }),
    ...(question.action !== null && { action: question.action }),
  });
}
