// Bounds the bytes of large request bodies that one daemon holds at once, over all requests. Beyond it a request is
// refused before its body is read. One tenant gets half at most, so that it cannot block the others.
import type { Request, Response } from 'express';
import { problem } from '../kernel/errors.ts';

// Smaller requests (heartbeats, most jobs) are never refused for their size.
const countedFrom = 65_536;

export class ByteBudget {
  #limit: number;
  #used = 0;
  #byTenant = new Map<string, number>();

  constructor(limitBytes: number) {
    this.#limit = limitBytes;
  }

  get usedBytes(): number {
    return this.#used;
  }

  /** Reserves the bytes until the response is closed, or throws. */
  reserve(response: Response, tenantId: string, bytes: number): void {
    if (bytes < countedFrom) return;
    const own = this.#byTenant.get(tenantId) ?? 0;
    if (own > 0 && own + bytes > this.#limit / 2) {
      throw problem('TOO_MANY_REQUESTS', 'Too many large requests of this tenant are under way; try again soon.');
    }
    if (this.#used > 0 && this.#used + bytes > this.#limit) {
      throw problem('OVERLOADED', 'The server is busy with large requests; try again soon.');
    }
    this.#used += bytes;
    this.#byTenant.set(tenantId, own + bytes);
    response.once('close', () => this.#release(tenantId, bytes));
  }

  #release(tenantId: string, bytes: number): void {
    this.#used -= bytes;
    const left = (this.#byTenant.get(tenantId) ?? 0) - bytes;
    if (left > 0) this.#byTenant.set(tenantId, left);
    else this.#byTenant.delete(tenantId);
  }
}

/** The announced size of the body; the limit if the client does not announce it or sends it compressed. */
export function announcedBytes(request: Request, limitBytes: number): number {
  const given = request.headers['content-length'];
  const encoding = request.headers['content-encoding'] ?? 'identity';
  return given === undefined || encoding !== 'identity' ? limitBytes : Math.min(Number(given), limitBytes);
}
