// The cookie of a dashboard session, and the check that a request with it comes from the dashboard's own pages.
import type { Request, Response } from 'express';
import { problem } from '../kernel/errors.ts';
import { sessionSeconds } from '../tenants/api-keys/sessions.ts';

const cookieName = 'leasehold_session';
/** Names the tenant that an operator's session looks at. */
export const tenantHeader = 'X-Leasehold-Tenant';

export function sessionToken(request: Request): string | undefined {
  for (const part of (request.headers.cookie ?? '').split(';')) {
    const [name, value] = part.trim().split('=');
    if (name === cookieName && value !== undefined && /^[\w-]{20,100}$/.test(value)) return value;
  }
  return undefined;
}

export function setSessionCookie(request: Request, response: Response, token: string): void {
  response.append('Set-Cookie', cookieText(request, token, sessionSeconds));
}

export function clearSessionCookie(request: Request, response: Response): void {
  response.append('Set-Cookie', cookieText(request, '', 0));
}

function cookieText(request: Request, value: string, seconds: number): string {
  // TLS ends in front of the daemon: the browser's own word says whether there is any.
  const secure = request.get('Origin')?.startsWith('https:') ? '; Secure' : '';
  return `${cookieName}=${value}; Path=/; HttpOnly; SameSite=Strict; Max-Age=${seconds}${secure}`;
}

/** A page of another site must not act with a person's session. Browsers set both headers; scripts cannot. */
export function requireSameOrigin(request: Request): void {
  if (request.method === 'GET' || request.method === 'HEAD') return;
  const site = request.get('Sec-Fetch-Site');
  if (site === 'same-origin') return;
  const origin = request.get('Origin');
  const host = request.get('Host');
  if (site === undefined && origin !== undefined && URL.canParse(origin) && new URL(origin).host === host) return;
  throw problem('FORBIDDEN', 'A request with a session cookie must come from the dashboard itself.');
}
