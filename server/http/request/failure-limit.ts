// Limits how often an address may fail in a minute: with invalid keys, sign-ins and links.
import type { Request, Response } from 'express';
import { ipKeyGenerator, type RateLimitRequestHandler, rateLimit } from 'express-rate-limit';

interface FailureLimit {
  perMinute: number;
  /** Answers beyond the limit. */
  refuse(request: Request, response: Response, next: (error: unknown) => void): void;
}

export function failureLimit({ perMinute, refuse }: FailureLimit): RateLimitRequestHandler {
  return rateLimit({
    windowMs: 60_000,
    limit: perMinute,
    standardHeaders: 'draft-8',
    legacyHeaders: false,
    validate: false,
    // A client that closed its connection meanwhile has no address any more.
    keyGenerator: ({ ip }) => (ip === undefined ? '' : ipKeyGenerator(ip)),
    handler: refuse,
  });
}
