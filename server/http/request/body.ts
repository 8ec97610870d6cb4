// Reads a JSON body within its limit, or reports the problem. No step blocks the event loop for long: a body of many
// megabytes is scanned in slices and parsed part by part.
import { isUtf8 } from 'node:buffer';
import express, { type NextFunction, type Request, type RequestHandler, type Response } from 'express';
import { largeBytes, nextTurnIfLarge, Pace } from '../../kernel/clock.ts';
import { type Problem, problem } from '../../kernel/errors.ts';
import { invalidFields } from '../../kernel/fields.ts';
import { findJsonViolation } from '../../kernel/json/json-violations.ts';
import { parseJsonInTurns } from '../../kernel/json/parse-in-turns.ts';
import { callerOf } from './authenticate.ts';
import { type JsonExcess, jsonLimits, type ScannedPart, scanJson } from './json-scan.ts';

const defaultBodyLimitBytes = 1_048_576;

export interface BodyOptions {
  limitBytes?: number | undefined;
  /** If set, the elements of its lists become JsonParts of at most this many bytes each. */
  partLimitBytes?: number | undefined;
}

/**
 * One element of a list in a large body. It is parsed on first use, because the values of 8 MB take many times as much
 * memory, and collecting that memory blocks the process.
 */
export class JsonPart {
  /** Returns the value, or throws its problem. INVALID_JSON is a problem of the whole body. */
  readonly read: () => Promise<unknown>;

  constructor(read: () => Promise<unknown>) {
    this.read = read;
  }
}

export function readJsonBody(options: BodyOptions, budget: ByteBudget): RequestHandler {
  const limit = options.limitBytes ?? defaultBodyLimitBytes;
  const readAny = express.raw({ limit, type: () => true });
  return (request, response, next) => {
    if (!hasBody(request.headers)) return next();
    if (request.readableEnded) return void parseBody(request, response, next, options);
    if (!isJson(request.headers['content-type'])) {
      throw problem(
        'UNSUPPORTED_MEDIA_TYPE',
        'Send the body as UTF-8 JSON with the header `Content-Type: application/json`.',
      );
    }
    if (Number(request.headers['content-length'] ?? 0) > limit) throw tooLarge(limit);
    // The client disconnected during authentication, so no event would end the read or free the budget.
    if (request.destroyed) return next(incomplete());
    budget.reserve(response, callerOf(response)?.tenant?.id ?? '', announcedBytes(request, limit));
    if (isPlain(request.headers)) return void parseBody(request, response, next, options);
    let isAnswered = false;
    const finish = (error?: unknown) => {
      if (isAnswered) return;
      isAnswered = true;
      if (error !== undefined) return next(error);
      void parseBody(request, response, next, options);
    };
    // The body parser would report the limit only after reading the body to its end, which may never come.
    let bytes = 0;
    request.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
      if (bytes > limit) finish(tooLarge(limit));
    });
    readAny(request, response, finish);
  };
}

/** True for a body of known length that is not compressed. Express inflates and measures the others. */
function isPlain(headers: Request['headers']): boolean {
  return headers['content-length'] !== undefined && (headers['content-encoding'] ?? 'identity') === 'identity';
}

/** The HTTP parser ends the request after the announced length. */
function readBytes(request: Request): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => resolve(chunks.length === 1 ? (chunks[0] as Buffer) : Buffer.concat(chunks)));
    const fail = () => {
      if (!request.readableEnded) reject(incomplete());
    };
    request.on('error', fail);
    request.on('close', fail);
  });
}

function tooLarge(limitBytes: number): Problem {
  return problem('PAYLOAD_TOO_LARGE', `The body is larger than ${limitBytes} bytes.`);
}

function incomplete(): Problem {
  return problem('BAD_REQUEST', 'The request is incomplete or malformed.');
}

async function parseBody(request: Request, _response: Response, next: NextFunction, options: BodyOptions) {
  try {
    const body: unknown = request.readableEnded ? request.body : await readBytes(request);
    if (body === undefined || Buffer.isBuffer(body) || typeof body === 'string') {
      const bytes = Buffer.isBuffer(body) ? body : Buffer.from(body ?? '');
      request.body = bytes.length === 0 ? undefined : await parseBytes(bytes, options);
    } else request.body = checkParsed(body, options);
  } catch (error) {
    return next(error);
  }
  next();
}

/** A body that the embedding program has already read and parsed, with its own limits. */
function checkParsed(body: unknown, { partLimitBytes }: BodyOptions): unknown {
  if (partLimitBytes === undefined) return body;
  const toPart = (value: unknown) => new JsonPart(async () => withoutViolation(value));
  const partsOf = (value: unknown) => (Array.isArray(value) ? value.map(toPart) : value);
  return Object.fromEntries(Object.entries(body as object).map(([name, value]) => [name, partsOf(value)]));
}

/** @internal Exported for its test. */
export async function parseBytes(bytes: Buffer, { partLimitBytes }: BodyOptions): Promise<unknown> {
  // A decoder would silently replace invalid bytes, and store data that was never sent.
  if (!isUtf8(bytes)) throw problem('INVALID_JSON', 'The body is not valid UTF-8.');
  const pace = new Pace();
  const scan = scanJson(bytes, partLimitBytes !== undefined);
  let step = scan.next();
  for (; !step.done; step = scan.next()) await pace.pause();
  const { excess, field, parts, isCut } = step.value;
  if (isCut) throw problem('INVALID_JSON', 'The body is not valid JSON: it ends too early.');
  if (excess) throw invalidFields([{ field, message: tooMany(excess) }]);
  if (partLimitBytes === undefined) {
    const value = await parseLargeText(bytes.toString());
    await nextTurnIfLarge(bytes.length);
    return value;
  }
  return parseParts(bytes, parts, partLimitBytes);
}

/** Each part is replaced by `[n]` in a small body around them, which is parsed last; only parts are arrays there. */
function parseParts(bytes: Buffer, parts: ScannedPart[], limitBytes: number): unknown {
  const around: string[] = [];
  let from = 0;
  for (const [n, part] of parts.entries()) {
    around.push(bytes.toString('utf8', from, part.start), `[${n}]`);
    from = part.end;
  }
  around.push(bytes.toString('utf8', from));
  const read = parts.map((part) => new JsonPart(() => readPart(bytes, part, limitBytes)));
  return restoreParts(parseText(around.join('')), read);
}

function restoreParts(body: unknown, read: JsonPart[]): unknown {
  if (typeof body !== 'object' || body === null) return body;
  const restore = (value: unknown): unknown => (Array.isArray(value) ? read[value[0] as number] : value);
  for (const [name, value] of Object.entries(body)) {
    const holder = body as Record<string, unknown>;
    if (Array.isArray(value)) holder[name] = value.map(restore);
    else if (typeof value === 'object' && value !== null) {
      holder[name] = Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, restore(inner)]));
    }
  }
  return body;
}

async function readPart(bytes: Buffer, { start, end, excess }: ScannedPart, limitBytes: number): Promise<unknown> {
  const size = end - start;
  if (size > limitBytes) {
    const detail = `It has ${size} bytes; at most ${limitBytes} are allowed.`;
    throw problem('PAYLOAD_TOO_LARGE', detail, { limit: limitBytes });
  }
  if (excess) throw invalidFields([{ field: '', message: tooMany(excess) }]);
  const value = await parseLargeText(bytes.toString('utf8', start, end));
  await nextTurnIfLarge(size);
  return withoutViolation(value);
}

function withoutViolation(value: unknown): unknown {
  const violation = findJsonViolation(value);
  if (violation) throw invalidFields([violation]);
  return value;
}

function tooMany(excess: JsonExcess): string {
  if (excess === 'levels') return `is nested deeper than ${jsonLimits.levels} levels`;
  return `has more than ${jsonLimits[excess]} ${excess}`;
}

async function parseLargeText(text: string): Promise<unknown> {
  if (text.length < largeBytes) return parseText(text);
  try {
    return await parseJsonInTurns(text);
  } catch (error) {
    throw invalidJson(error);
  }
}

function parseText(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw invalidJson(error);
  }
}

function invalidJson(error: unknown): Problem {
  return problem('INVALID_JSON', `The body is not valid JSON: ${(error as Error).message.slice(0, 200)}`);
}

function hasBody(headers: {
  'transfer-encoding'?: string | undefined;
  'content-length'?: string | undefined;
}): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
}

function isJson(contentType: string | undefined): boolean {
  const type = /^application\/(?:[\w.+-]+\+)?json\s*(?:;(.*))?$/i.exec(contentType?.trim() ?? '');
  if (type === null) return false;
  const charset = /charset\s*=\s*"?([^\s;"]+)/i.exec(type[1] ?? '')?.[1];
  return charset === undefined || /^utf-?8$/i.test(charset);
}

// Smaller requests (heartbeats, most jobs) are never refused for their size.
const countedFrom = 65_536;

/**
 * Bounds the bytes of large request bodies that one daemon holds at once. A request beyond the limit is refused before
 * its body is read. One tenant gets at most half, so that it cannot block the others.
 */
export class ByteBudget {
  #limitBytes: number;
  #usedBytes = 0;
  #byTenant = new Map<string, number>();

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  /** Reserves the bytes until the response is closed, or throws. */
  reserve(response: Response, tenantId: string, bytes: number): void {
    if (bytes < countedFrom) return;
    const own = this.#byTenant.get(tenantId) ?? 0;
    if (own > 0 && own + bytes > this.#limitBytes / 2) {
      throw problem('TOO_MANY_REQUESTS', 'Too many large requests of this tenant are under way; try again soon.');
    }
    if (this.#usedBytes > 0 && this.#usedBytes + bytes > this.#limitBytes) {
      throw problem('OVERLOADED', 'The server is busy with large requests; try again soon.');
    }
    this.#usedBytes += bytes;
    this.#byTenant.set(tenantId, own + bytes);
    response.once('close', () => this.#release(tenantId, bytes));
  }

  #release(tenantId: string, bytes: number): void {
    this.#usedBytes -= bytes;
    const left = (this.#byTenant.get(tenantId) ?? 0) - bytes;
    if (left > 0) this.#byTenant.set(tenantId, left);
    else this.#byTenant.delete(tenantId);
  }
}

/** The announced size of the body; the limit if the client does not announce it or sends it compressed. */
function announcedBytes(request: Request, limitBytes: number): number {
  const given = request.headers['content-length'];
  const encoding = request.headers['content-encoding'] ?? 'identity';
  return given === undefined || encoding !== 'identity' ? limitBytes : Math.min(Number(given), limitBytes);
}
