// One POST to a receiver that nobody trusts: its address is checked when connecting, redirects are
// not followed, the status decides, and of the answer's body almost nothing is read.
import type { LookupFunction } from 'node:net';
import { Agent, type Dispatcher, request } from 'undici';
import { errorMessage } from '../kernel/errors.ts';
import { AddressRefused, isAddressLiteral, isPublicAddress, publicLookup } from './address.ts';

export interface SenderOptions {
  allowPrivate: boolean;
  timeoutMs: number;
  /** Instead of the system's resolver. */
  lookup?: LookupFunction;
}

export type SendResult =
  | { kind: 'accepted'; status: number }
  /** The receiver wants no more of these. */
  | { kind: 'gone'; status: 410 }
  | { kind: 'refused'; status: number; error: string }
  /** No answer at all. */
  | { kind: 'unreachable'; error: string }
  /** Trying again cannot help. */
  | { kind: 'impossible'; error: string };

// Enough to keep the connection after a usual answer; beyond it the connection is cut.
const maxAnswerBytes = 16_384;

export class WebhookSender {
  #agent: Dispatcher;
  #options: SenderOptions;

  constructor(options: SenderOptions) {
    this.#options = options;
    const lookup = options.allowPrivate ? options.lookup : publicLookup(options.lookup);
    this.#agent = new Agent({
      connect: { timeout: options.timeoutMs, ...(lookup && { lookup }) },
      headersTimeout: options.timeoutMs,
      bodyTimeout: options.timeoutMs,
      keepAliveTimeout: 4_000,
      maxHeaderSize: 16_384,
    });
  }

  /** Never throws. */
  async send(url: string, headers: Record<string, string>, body: string): Promise<SendResult> {
    const target = this.#check(url);
    if (!(target instanceof URL)) return target;
    try {
      const answer = await request(target, {
        method: 'POST',
        dispatcher: this.#agent,
        headers: { 'content-type': 'application/json', 'user-agent': 'leasehold', ...headers },
        body,
        signal: AbortSignal.timeout(this.#options.timeoutMs),
      });
      // The status has decided; a body that never ends, or breaks off, changes nothing.
      await answer.body
        .dump({ limit: maxAnswerBytes, signal: AbortSignal.timeout(this.#options.timeoutMs) })
        .catch(() => {});
      return resultOfStatus(answer.statusCode);
    } catch (error) {
      return resultOfError(error, this.#options.timeoutMs);
    }
  }

  async close(): Promise<void> {
    await this.#agent.destroy();
  }

  #check(url: string): URL | SendResult {
    if (!URL.canParse(url)) return { kind: 'impossible', error: 'the URL is not valid' };
    const target = new URL(url);
    if (target.protocol !== 'http:' && target.protocol !== 'https:') {
      return { kind: 'impossible', error: 'the URL is neither http nor https' };
    }
    // Connecting to a literal asks no resolver, so the lookup would not see it.
    if (!this.#options.allowPrivate && isAddressLiteral(target.hostname) && !isPublicAddress(target.hostname)) {
      return { kind: 'impossible', error: notReachable };
    }
    return target;
  }
}

function resultOfStatus(status: number): SendResult {
  if (status >= 200 && status < 300) return { kind: 'accepted', status };
  if (status === 410) return { kind: 'gone', status };
  if (status >= 300 && status < 400) return { kind: 'refused', status, error: 'redirects are not followed' };
  return { kind: 'refused', status, error: `the receiver answered ${status}` };
}

function resultOfError(error: unknown, timeoutMs: number): SendResult {
  const cause = causesOf(error);
  if (cause.some((e) => e instanceof AddressRefused || isLookupFailure(e))) {
    return { kind: 'unreachable', error: notReachable };
  }
  if (cause.some((e) => e instanceof Error && /Timeout/.test(e.name + e.constructor.name))) {
    return { kind: 'unreachable', error: `no answer within ${timeoutMs} ms` };
  }
  return { kind: 'unreachable', error: storable(errorMessage(error)) };
}

/** A text that Postgres refuses would keep the outcome from being stored, and the delivery would be tried for ever. */
function storable(text: string): string {
  return text.slice(0, 300).toWellFormed().replaceAll('\0', ' ');
}

// One text for a name that does not exist, one that cannot be looked up and one that leads inside: otherwise a
// tenant could find out which names there are in the network of this machine.
const notReachable = 'the address does not lead to a public host';

function isLookupFailure(error: unknown): boolean {
  const { syscall, code } = error as NodeJS.ErrnoException;
  return syscall === 'getaddrinfo' || /^(ENOTFOUND|EAI_|ENODATA|ESERVFAIL)/.test(code ?? '');
}

function causesOf(error: unknown): unknown[] {
  const found: unknown[] = [];
  for (let e: unknown = error; e instanceof Error && found.length < 5; e = e.cause) {
    found.push(e);
    if (e instanceof AggregateError) found.push(...e.errors);
  }
  return found;
}
