// Requests to the daemon that served the page. The session cookie signs them; the page never has a key.
import { Store } from './store.ts';

export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly problem: Record<string, unknown>;

  constructor(status: number, problem: Record<string, unknown>) {
    super(typeof problem.detail === 'string' ? problem.detail : `The daemon answered ${status}.`);
    this.status = status;
    this.code = typeof problem.code === 'string' ? problem.code : '';
    this.problem = problem;
  }
}

/** The tenant that an operator has selected; not needed with a tenant's key. */
export const chosenTenant = new Store<string | undefined>(undefined);
/** Set when a request was refused because the session ended. */
export const sessionEnded = new Store(false);

/** The path under which the dashboard is mounted, from <base>. */
export const base = new URL(document.baseURI).pathname;

export function apiUrl(path: string): string {
  return `${base}api${path}`;
}

export function apiHeaders(path: string): Record<string, string> {
  const tenant = chosenTenant.value;
  const ofTenant = tenant !== undefined && !path.startsWith('/admin') && !path.startsWith('/session');
  return ofTenant ? { 'X-Leasehold-Tenant': tenant } : {};
}

export interface RequestOptions {
  method?: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  body?: unknown;
  signal?: AbortSignal | undefined;
  headers?: Record<string, string>;
}

export async function api<T>(path: string, options: RequestOptions = {}): Promise<T> {
  const { method = 'GET', body, signal } = options;
  let response: Response;
  try {
    response = await fetch(apiUrl(path), {
      method,
      headers: {
        ...apiHeaders(path),
        ...(body !== undefined && { 'Content-Type': 'application/json' }),
        ...options.headers,
      },
      credentials: 'same-origin',
      ...(body !== undefined && { body: JSON.stringify(body) }),
      ...(signal && { signal }),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, { code: 'UNREACHABLE', detail: 'The daemon cannot be reached. It may be restarting.' });
  }
  if (response.ok) return (response.status === 204 ? undefined : await response.json()) as T;
  const problem = (await response.json().catch(() => ({}))) as Record<string, unknown>;
  if (response.status === 401 && !path.startsWith('/session')) sessionEnded.set(true);
  throw new ApiError(response.status, problem);
}

/** Builds a query such as `?status=ERROR&type=…` from the values that are set. */
export function queryOf(values: Record<string, string | number | boolean | undefined>): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined && value !== '') params.set(name, String(value));
  }
  const text = params.toString();
  return text === '' ? '' : `?${text}`;
}

export const enc = encodeURIComponent;
