// /api/questions/{id}/links: links that open the hosted form of a question without a key.
import type { Request } from 'express';
import { z } from 'zod';
import { requireQuestion } from '../../jobs/questions/answer.ts';
import { createLink, listLinks, revokeLink } from '../../jobs/questions/question-links.ts';
import type { Config } from '../../kernel/config.ts';
import { problem } from '../../kernel/errors.ts';
import { isUuid, nameField } from '../../kernel/fields.ts';
import { maxSeconds } from '../../kernel/limits.ts';
import { audit } from '../request/request-log.ts';
import { RouteGroup, reply } from '../route.ts';
import { toApi } from '../to-api.ts';
import { questionId, questionParams } from './questions.ts';

interface QuestionLinkDependencies {
  config: Pick<Config, 'publicUrl'>;
}

const time = z.iso.datetime({ offset: true });

const linkSchema = z
  .strictObject({
    id: z.string(),
    question_id: z.string(),
    recipient: z.string().nullable(),
    created_by: z.string(),
    created_at: time,
    expires_at: time,
    used_at: time.nullable().describe('When the question was answered through it.'),
    revoked_at: time.nullable(),
  })
  .meta({ id: 'QuestionLink' });

const newLinkSchema = linkSchema
  .extend({ url: z.string().describe('Shown only once: everybody who has it can answer the question.') })
  .meta({ id: 'NewQuestionLink' });

const createBody = z.strictObject({
  recipient: nameField().optional().describe('Who gets the link; an answer through it is recorded as theirs.'),
  expires_in_seconds: z
    .number()
    .min(1)
    .max(maxSeconds)
    .optional()
    .describe('By default the link is valid for as long as the question, at most 30 days.'),
});

const linkParams = questionParams.extend({ link_id: z.string().max(100) });

export function questionLinkRoutes({ config }: QuestionLinkDependencies): RouteGroup {
  const group = new RouteGroup('Questions');
  group.route({
    method: 'get',
    path: '/api/questions/{id}/links',
    summary: 'List the links of a question, newest first',
    access: 'control',
    params: questionParams,
    answers: { 200: z.strictObject({ links: z.array(linkSchema) }) },
    problems: ['NOT_FOUND'],
    handle: async ({ tenant, db, params }) => {
      const { id } = await requireQuestion(db, tenant.schema, questionId(params));
      return { links: (await listLinks(db, tenant.schema, id)).map((link) => toApi(linkSchema, link)) };
    },
  });
  group.route({
    method: 'post',
    path: '/api/questions/{id}/links',
    summary: 'Create a link that opens the form of the question without sign-in',
    description:
      'To be sent by mail or chat. One answer uses it up; opening it does not. It ends with the question, at its own time, or when it is revoked.',
    access: 'control',
    params: questionParams,
    body: createBody,
    bodyOptional: true,
    answers: { 201: newLinkSchema },
    problems: ['NOT_FOUND', 'QUESTION_CLOSED'],
    handle: async (context) => {
      const { tenant, db, params, body, actor, request } = context;
      const { id } = await requireQuestion(db, tenant.schema, questionId(params));
      const { recipient, expires_in_seconds: expiresInSeconds } = body;
      const { link, token } = await createLink(db, tenant, { questionId: id, recipient, expiresInSeconds, actor });
      audit(context, 'question_link.created', { question_id: id, link_id: link.id });
      return reply(201, toApi(newLinkSchema, link, { url: `${baseUrl(config, request)}/q/${token}` }));
    },
  });
  group.route({
    method: 'delete',
    path: '/api/questions/{id}/links/{link_id}',
    summary: 'Revoke a link',
    access: 'control',
    params: linkParams,
    answers: { 204: null },
    problems: ['NOT_FOUND'],
    handle: async (context) => {
      const { tenant, db, params } = context;
      if (!isUuid(params.link_id)) throw problem('NOT_FOUND', 'There is no such link.');
      const linkId = params.link_id;
      await revokeLink(db, tenant.schema, { questionId: questionId(params), linkId });
      audit(context, 'question_link.revoked', { question_id: params.id, link_id: linkId });
      return reply(204);
    },
  });
  return group;
}

function baseUrl({ publicUrl }: Pick<Config, 'publicUrl'>, request: Request): string {
  return publicUrl || `${request.protocol}://${request.get('host') ?? 'localhost'}${request.baseUrl}`;
}
