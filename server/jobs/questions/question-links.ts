// Links that open the hosted form of one question, for people without a key. The answer uses up a link; opening the
// form does not. A link ends with its question and can be revoked.
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { parse, stringify, v7 as uuidv7 } from 'uuid';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { columnList, columnsOf, type RowOf } from '../../database/reads/drizzle.ts';
import { statement, tenant } from '../../database/sql.ts';
import { questionLinks } from '../../database/tables/tenant-questions.ts';
import { problem } from '../../kernel/errors.ts';
import type { Tenant } from '../../tenants/tenant.ts';

export type QuestionLink = Omit<RowOf<typeof questionLinks>, 'hash'>;
/** The state of a link. `open` opens the form; the others say why it does not. */
export type LinkState = 'open' | 'used' | 'revoked' | 'expired';

const { hash: _, ...shown } = columnsOf(questionLinks);
const columns = columnList(questionLinks, shown, 'l');

const idBytes = 16;
const randomLength = 24;
const macLength = 12;
const tokenPattern = /^[A-Za-z0-9_-]{70}$/;

/** A token names its tenant and is signed for it, so that a guessed token is refused without a query. */
function newToken({ id, secret }: Pick<Tenant, 'id' | 'secret'>): string {
  const body = Buffer.concat([Buffer.from(parse(id)), randomBytes(randomLength)]);
  return Buffer.concat([body, macOf(secret, body)]).toString('base64url');
}

/** Returns the tenant that a token names. */
export function tenantIdOf(token: string): string | undefined {
  if (!tokenPattern.test(token)) return undefined;
  try {
    return stringify(Buffer.from(token, 'base64url').subarray(0, idBytes));
  } catch {
    return undefined;
  }
}

export function isSigned({ secret }: Pick<Tenant, 'secret'>, token: string): boolean {
  const bytes = Buffer.from(token, 'base64url');
  const [body, mac] = [bytes.subarray(0, -macLength), bytes.subarray(-macLength)];
  return mac.length === macLength && timingSafeEqual(mac, macOf(secret, body));
}

function macOf(secret: string, body: Buffer): Buffer {
  return createHmac('sha256', secret).update('question-link:').update(body).digest().subarray(0, macLength);
}

function digest(token: string): Buffer {
  return createHash('sha256').update(token).digest();
}

export interface LinkRequest {
  questionId: string;
  recipient?: string | undefined;
  /** The default is the time of the question, at most 30 days. */
  expiresInSeconds?: number | undefined;
  actor: string;
}

const insertStatement = statement(`
  insert into ${tenant}.question_links as l (id, question_id, hash, recipient, created_by, expires_at)
  select :id, q.id, :hash, :recipient, :actor,
         coalesce(now() + :seconds::float8 * interval '1 second', least(q.expires_at, now() + interval '30 days'))
    from ${tenant}.questions q
   where q.id = :questionId
     and q.status = 'open'
  returning ${columns}`);

/** The token; it is returned only here. */
export async function createLink(
  db: Queryable,
  owner: Tenant,
  request: LinkRequest,
): Promise<{ link: QuestionLink; token: string }> {
  const token = newToken(owner);
  const [link] = await insertStatement.query<QuestionLink>(db, owner.schema, {
    id: uuidv7(),
    hash: digest(token),
    questionId: request.questionId,
    recipient: request.recipient ?? null,
    seconds: request.expiresInSeconds ?? null,
    actor: request.actor,
  });
  if (link === undefined) throw problem('QUESTION_CLOSED', 'The question is not open.');
  return { link, token };
}

const listStatement = statement(`
  select ${columns}
    from ${tenant}.question_links l
   where l.question_id = :questionId
   order by l.id desc
   limit 200`);

/** Lists links, newest first, at most 200. */
export async function listLinks(db: Queryable, schema: Schema, questionId: string): Promise<QuestionLink[]> {
  return listStatement.query<QuestionLink>(db, schema, { questionId });
}

const revokeStatement = statement(`
  with given as (
    select now() as at
  )
  update ${tenant}.question_links l
     set revoked_at = coalesce(l.revoked_at, g.at)
    from given g
   where l.id = :linkId
     and l.question_id = :questionId
  returning l.id`);

export async function revokeLink(
  db: Queryable,
  schema: Schema,
  { questionId, linkId }: { questionId: string; linkId: string },
): Promise<void> {
  const rows = await revokeStatement.query(db, schema, { questionId, linkId });
  if (rows.length === 0) throw problem('NOT_FOUND', 'There is no such link.');
}

const state = `case
           when l.used_at is not null then 'used'
           when l.revoked_at is not null then 'revoked'
           when l.expires_at <= now() then 'expired'
           else 'open' end as state`;

const byHash = statement(`
  select ${columns}, ${state}
    from ${tenant}.question_links l
   where l.hash = :hash`);

export async function findLink(
  db: Queryable,
  schema: Schema,
  token: string,
): Promise<(QuestionLink & { state: LinkState }) | undefined> {
  const [link] = await byHash.query<QuestionLink & { state: LinkState }>(db, schema, { hash: digest(token) });
  return link;
}

const lockStatement = statement(`
  select ${state}
    from ${tenant}.question_links l
   where l.id = :linkId
     and l.question_id = :questionId
     for update`);

/** Locks the link for an answer in the same transaction. A revocation waits for the lock, or came first. */
export async function requireOpenLink(
  tx: Queryable,
  schema: Schema,
  linkId: string,
  questionId: string,
): Promise<void> {
  const [link] = await lockStatement.query<{ state: LinkState }>(tx, schema, { linkId, questionId });
  if (link?.state !== 'open') throw problem('QUESTION_CLOSED', `The link is ${link?.state ?? 'not valid'}.`);
}
