// Sends one POST to an untrusted receiver: its address is checked when connecting, redirects are not followed, the
// status decides, and only the first bytes of the response body are read.
import { lookup as systemLookup } from 'node:dns';
import type { LookupFunction } from 'node:net';
import ipaddr from 'ipaddr.js';
import type { Dispatcher } from 'undici';
import { errorMessage } from '../kernel/errors.ts';

interface SenderOptions {
  allowPrivate: boolean;
  timeoutMs: number;
  /** Replaces the system's resolver. */
  lookup?: LookupFunction;
}

export type SendResult =
  | { kind: 'accepted'; status: number }
  /** The receiver wants no more deliveries. */
  | { kind: 'gone'; status: 410 }
  | { kind: 'refused'; status: number; error: string }
  /** No response. */
  | { kind: 'unreachable'; error: string }
  /** A retry cannot succeed. */
  | { kind: 'impossible'; error: string };

// Enough to reuse the connection after a usual response; a larger one closes the connection.
const maxAnswerBytes = 16_384;

export class WebhookSender {
  #options: SenderOptions;
  /**
   * Loaded with the first delivery, because most daemons send none and it takes a fifth of the memory of an idle
   * daemon.
   */
  #client: Promise<HttpClient> | undefined;

  constructor(options: SenderOptions) {
    this.#options = options;
  }

  /** Never throws. */
  async send(url: string, headers: Record<string, string>, body: string): Promise<SendResult> {
    const target = this.#check(url);
    if (!(target instanceof URL)) return target;
    try {
      this.#client ??= loadClient(this.#options);
      const { request, agent } = await this.#client;
      const answer = await request(target, {
        method: 'POST',
        dispatcher: agent,
        headers: { 'content-type': 'application/json', 'user-agent': 'leasehold', ...headers },
        body,
        signal: AbortSignal.timeout(this.#options.timeoutMs),
      });
      // The status decides. A body that never ends, or is cut off, changes nothing.
      await answer.body
        .dump({ limit: maxAnswerBytes, signal: AbortSignal.timeout(this.#options.timeoutMs) })
        .catch(() => {});
      return resultOfStatus(answer.statusCode);
    } catch (error) {
      return resultOfError(error, this.#options.timeoutMs);
    }
  }

  async close(): Promise<void> {
    await (await this.#client)?.agent.destroy();
  }

  #check(url: string): URL | SendResult {
    if (!URL.canParse(url)) return { kind: 'impossible', error: 'the URL is not valid' };
    const target = new URL(url);
    if (target.protocol !== 'http:' && target.protocol !== 'https:') {
      return { kind: 'impossible', error: 'the URL is neither http nor https' };
    }
    // An address literal is not resolved, so the lookup would not check it.
    if (!this.#options.allowPrivate && isAddressLiteral(target.hostname) && !isPublicAddress(target.hostname)) {
      return { kind: 'impossible', error: notReachable };
    }
    return target;
  }
}

interface HttpClient {
  request: typeof import('undici').request;
  agent: Dispatcher;
}

async function loadClient({ allowPrivate, lookup: given, timeoutMs }: SenderOptions): Promise<HttpClient> {
  const { Agent, request } = await import('undici');
  const lookup = allowPrivate ? given : publicLookup(given);
  const agent = new Agent({
    connect: { timeout: timeoutMs, ...(lookup && { lookup }) },
    headersTimeout: timeoutMs,
    bodyTimeout: timeoutMs,
    keepAliveTimeout: 4_000,
    maxHeaderSize: 16_384,
  });
  return { request, agent };
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

/** Postgres must accept the text: without a stored outcome the delivery would be retried forever. */
function storable(text: string): string {
  return text.slice(0, 300).toWellFormed().replaceAll('\0', ' ');
}

// The same text for a name that does not exist, that cannot be resolved, or that has a private address. Otherwise a
// tenant could find out which names exist in the network of this machine.
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

// The addresses that a tenant's URL may reach: only those of the public internet, and none with a special purpose
// (private, loopback, link-local, shared, mapped, translated, reserved).
class AddressRefused extends Error {
  override name = 'AddressRefused';
}

// In a public range, but the host of every Azure machine.
const internalButPublicLooking = new Set(['168.63.129.16']);

/** False also for a text that is not an address. */
export function isPublicAddress(text: string): boolean {
  const bare = text.replace(/^\[|\]$/g, '');
  if (!ipaddr.isValid(bare)) return false;
  // An IPv4 address mapped into IPv6 reaches the same host, so it is checked as IPv4.
  const address = ipaddr.process(bare);
  if (address.range() !== 'unicast' || internalButPublicLooking.has(address.toString())) return false;
  // The only public range of IPv6 is 2000::/3.
  return address.kind() === 'ipv4' || ((address.toByteArray()[0] ?? 0) & 0xe0) === 0x20;
}

/** The URL parser has already turned forms such as 2130706433 and 0x7f.1 into dotted ones. */
export function isAddressLiteral(hostname: string): boolean {
  return ipaddr.isValid(hostname.replace(/^\[|\]$/g, ''));
}

/**
 * A lookup for `connect`. The checked addresses are the ones that are connected to, so a name that changes its address
 * between check and use is refused too.
 */
export function publicLookup(resolve: LookupFunction = systemLookup as unknown as LookupFunction): LookupFunction {
  return (hostname, options, callback) => {
    resolve(hostname, { ...options, all: true }, (error, found) => {
      if (error) return callback(error, []);
      const addresses = typeof found === 'string' ? [{ address: found, family: found.includes(':') ? 6 : 4 }] : found;
      const refused = addresses.find(({ address }) => !isPublicAddress(address));
      if (refused !== undefined || addresses.length === 0) {
        return callback(new AddressRefused('the name resolves to an address that is not public'), []);
      }
      if (options.all) return callback(null, addresses);
      const [first] = addresses;
      callback(null, first?.address ?? '', first?.family ?? 4);
    });
  };
}
