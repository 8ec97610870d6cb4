// Reads a JSON body within its limit, or says plainly what is wrong with it.
import { isUtf8 } from 'node:buffer';
import express, { type RequestHandler } from 'express';
import { problem } from '../kernel/errors.ts';

export const defaultBodyLimitBytes = 1_048_576;

export function readJsonBody(limitBytes = defaultBodyLimitBytes): RequestHandler {
  const parse = express.json({ limit: limitBytes, strict: false, type: () => true, verify: refuseBrokenText });
  return (request, response, next) => {
    if (!hasBody(request.headers)) return next();
    if (!isJson(request.headers['content-type'])) {
      throw problem(
        'UNSUPPORTED_MEDIA_TYPE',
        'Send the body as JSON with the header `Content-Type: application/json`.',
      );
    }
    parse(request, response, next);
  };
}

function hasBody(headers: {
  'transfer-encoding'?: string | undefined;
  'content-length'?: string | undefined;
}): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
}

function isJson(contentType: string | undefined): boolean {
  return /^application\/(?:[\w.+-]+\+)?json\s*(?:;|$)/i.test(contentType?.trim() ?? '');
}

// A decoder would replace broken bytes without a word, and store what nobody sent.
function refuseBrokenText(_request: unknown, _response: unknown, bytes: Buffer, encoding: string): void {
  if (encoding === 'utf-8' && !isUtf8(bytes)) throw problem('INVALID_JSON', 'The body is not valid UTF-8.');
}
