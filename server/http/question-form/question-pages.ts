// /q/{token}: the hosted form of one question, for the person who has the link. It needs no sign-in and no scripts. No
// log has tokens, and addresses that try many tokens are refused for a while.
import express, { type NextFunction, type Request, type Response, Router } from 'express';
import type { Database } from '../../database/database.ts';
import { formFields } from '../../forms/answer-fields.ts';
import { answerOf, type Entered } from '../../forms/entered-answer.ts';
import type { CommitSignals } from '../../jobs/commit-signals.ts';
import { answerQuestion, requireQuestion } from '../../jobs/questions/answer.ts';
import type { Question } from '../../jobs/questions/question.ts';
import {
  findLink,
  isSigned,
  type LinkState,
  type QuestionLink,
  tenantIdOf,
} from '../../jobs/questions/question-links.ts';
import { Problem } from '../../kernel/errors.ts';
import type { FieldError } from '../../kernel/fields.ts';
import { findJsonViolation } from '../../kernel/json/json-violations.ts';
import type { TenantRegistry } from '../../tenants/registry.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { failureLimit } from '../request/failure-limit.ts';
import { formPage, formPolicy, messagePage, utc } from './form-page.ts';

export interface QuestionPageDependencies {
  db: Database;
  registry: Pick<TenantRegistry, 'byId'>;
  signals: CommitSignals;
}

// More than a person who mistypes an address needs, and too few for guessing.
const failuresPerMinute = 30;
const maxFormBytes = 262_144;

interface OpenedLink {
  tenant: Tenant;
  /** A database that can reach this tenant only. */
  db: Database;
  link: QuestionLink & { state: LinkState };
  question: Question;
}

interface Page {
  status: number;
  body: string;
}

export function questionPages(deps: QuestionPageDependencies): Router {
  const router = Router({ caseSensitive: true });
  const limit = failureLimit({
    perMinute: failuresPerMinute,
    refuse: (_request, response) => send(response, tooMany),
  });
  // Only invalid links are counted, so a person with a valid one is never refused here.
  const refuse = (request: Request, response: Response) =>
    void limit(request, response, () => send(response, unknownLink));
  const serve = (make: (opened: OpenedLink, request: Request, response: Response) => Promise<Page>) => {
    return async (request: Request, response: Response, next: NextFunction) => {
      try {
        const opened = await open(deps, String(request.params.token));
        if (opened === unknownLink) refuse(request, response);
        else send(response, isPage(opened) ? opened : await make(opened, request, response));
      } catch (error) {
        if (error instanceof UnreadableForm) return next(error.cause);
        request.log.error({ err: error }, 'hosted form failed');
        send(response, { status: 503, body: messagePage('Not available now', 'Please try again in a moment.') });
      }
    };
  };
  router
    .route('/q/:token')
    .get(serve(async ({ question }) => showForm(question)))
    .post(
      serve(async (opened, request, response) => {
        // Only now, so that the form of a caller without a valid link is never read.
        await readForm(request, response);
        return submit(deps, opened, toEntered(request.body));
      }),
    );
  return router;
}

const parseForm = express.urlencoded({ extended: false, limit: maxFormBytes, parameterLimit: 1000 });

/** The cause is the error of the body parser, which the app answers. */
class UnreadableForm extends Error {}

function readForm(request: Request, response: Response): Promise<void> {
  return new Promise((resolve, reject) => {
    // The parser takes a request that was cut off meanwhile for one without fields.
    if (request.destroyed) return reject(new Error('the client disconnected'));
    parseForm(request, response, (error?: unknown) => {
      if (error === undefined) resolve();
      else reject(new UnreadableForm('the form could not be read', { cause: error }));
    });
  });
}

function send(response: Response, { status, body }: Page): void {
  response.set({
    'Content-Security-Policy': formPolicy,
    'Cache-Control': 'no-store',
    'Referrer-Policy': 'no-referrer',
    'X-Robots-Tag': 'noindex',
  });
  response.status(status).type('html').send(body);
}

/** Returns the question of the link, or the page that says why it cannot be answered. */
async function open({ db, registry }: QuestionPageDependencies, token: string): Promise<OpenedLink | Page> {
  const tenant = registry.byId(tenantIdOf(token) ?? '');
  if (tenant === undefined || !isSigned(tenant, token)) return unknownLink;
  if (tenant.status !== 'ACTIVE') return gone('The question cannot be answered at the moment.');
  const own = db.forTenant(tenant.schema);
  const link = await findLink(own, tenant.schema, token);
  if (link === undefined) return unknownLink;
  const question = await requireQuestion(own, tenant.schema, link.questionId);
  const closed = closedPage(question, link.state);
  return closed ?? { tenant, db: own, link, question };
}

const unknownLink: Page = {
  status: 404,
  body: messagePage('This link is not valid', 'It is incomplete or was never issued. Please check the address.'),
};
const tooMany: Page = { status: 429, body: messagePage('Too many requests', 'Please wait a minute and try again.') };

function isPage(opened: OpenedLink | Page): opened is Page {
  return 'body' in opened;
}

function gone(text: string): Page {
  return { status: 410, body: messagePage('This link is no longer valid', text) };
}

function closedPage({ status, closedAt, ...question }: Question, state: LinkState): Page | undefined {
  const at = closedAt === null ? '' : ` on ${utc(closedAt)}`;
  if (state === 'revoked') return gone('It was withdrawn by the person or program that issued it.');
  if (status === 'answered') return gone(`The question was answered${byWhom(question)}${at}. Nothing is left to do.`);
  if (status === 'expired') return gone(`The time to answer was over${at}.`);
  if (status === 'canceled') return gone(`The question is no longer asked${at === '' ? '' : `, since${at.slice(3)}`}.`);
  if (state === 'expired') return gone('Its time is over. Ask for a new link.');
  return state === 'used' ? gone('It was used already.') : undefined;
}

/** The first answer, for a person who comes too late: the chosen button and the person. Keys and links are not named. */
function byWhom({ action, actions, answeredBy }: Pick<Question, 'action' | 'actions' | 'answeredBy'>): string {
  const label = actions.find(({ name }) => name === action)?.label ?? action;
  const person = answeredBy === null || /^(key|link):/.test(answeredBy) ? '' : ` by ${answeredBy}`;
  return `${label === null ? '' : ` with “${label}”`}${person}`;
}

function showForm(question: Question, entered?: Entered, errors: readonly FieldError[] = []): Page {
  const fields = formFields(question);
  return { status: errors.length > 0 ? 400 : 200, body: formPage({ question, fields, entered, errors }) };
}

async function submit(
  { signals }: QuestionPageDependencies,
  { tenant, db, link, question }: OpenedLink,
  { entered, action }: { entered: Entered; action: string | undefined },
): Promise<Page> {
  const answer = answerOf(formFields(question), entered);
  const violation = findJsonViolation(answer);
  if (violation !== undefined) return showForm(question, entered, [violation]);
  try {
    const actor = `link:${link.id}`;
    const author = link.recipient ?? undefined;
    await answerQuestion(db, tenant.schema, {
      questionId: question.id,
      answer,
      action,
      actor,
      author,
      linkId: link.id,
    });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.code === 'INVALID_FIELD') return showForm(question, entered, fieldErrors(error));
    const now = await requireQuestion(db, tenant.schema, question.id);
    return closedPage(now, 'open') ?? gone('It was used, withdrawn, or its time is over.');
  }
  signals.jobsWritten(tenant);
  return { status: 200, body: messagePage('Thank you', 'Your answer was recorded.') };
}

function fieldErrors({ extra }: Problem): FieldError[] {
  const errors = (extra.errors ?? []) as FieldError[];
  return errors.map(({ field, message }) => ({ field: field.replace(/^answer\./, ''), message }));
}

/** Names of fields are prefixed, so that no field can replace the action. */
function toEntered(body: unknown): { entered: Entered; action: string | undefined } {
  const entered: Entered = Object.create(null);
  const given = (body ?? {}) as Record<string, string | string[]>;
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith('field.')) entered[name.slice('field.'.length)] = value;
  }
  const { action } = given;
  return { entered, action: typeof action === 'string' && action !== '' ? action : undefined };
}
