// The part of the Postgres wire protocol that a proxy needs: splits bytes into messages and requests, and creates
// answers.

/** A type (none in the first message of a client, or before it in an `offer`), a length that counts itself, and a body. */
export interface WireMessage {
  type: string;
  bytes: Buffer;
}

/** Codes of requests for encryption, by TLS and GSS, which come before the first message. */
const offers = new Set([80877103, 80877104]);

/** Cuts a stream of bytes into whole messages. */
export class MessageReader {
  #rest: Buffer = Buffer.alloc(0);
  #hasType: boolean;

  /** A client's first message has no type. */
  constructor(from: 'client' | 'server') {
    this.#hasType = from === 'server';
  }

  read(data: Buffer): WireMessage[] {
    this.#rest = this.#rest.length === 0 ? data : Buffer.concat([this.#rest, data]);
    const messages: WireMessage[] = [];
    for (;;) {
      const head = this.#hasType ? 1 : 0;
      if (this.#rest.length < head + 4) return messages;
      const length = head + this.#rest.readInt32BE(head);
      if (this.#rest.length < length) return messages;
      const bytes = this.#rest.subarray(0, length);
      const isOffer = head === 0 && length === 8 && offers.has(bytes.readInt32BE(4));
      const type = isOffer ? 'offer' : 'startup';
      messages.push({ type: head === 1 ? String.fromCharCode(bytes[0] as number) : type, bytes });
      this.#rest = this.#rest.subarray(length);
      this.#hasType = !isOffer;
    }
  }
}

/** The request that the server answers with one ReadyForQuery: a simple query, or all messages up to a Sync. */
export interface WireRequest {
  /** The SQL, also that of a statement that was prepared earlier. */
  text: string;
  bytes: Buffer;
}

/** Puts the messages of one client together to requests. */
export class RequestReader {
  readonly #prepared = new Map<string, string>();
  #parts: Buffer[] = [];
  #text = '';

  /** A request that is complete now, or bytes that belong to none and pass as they are. */
  add({ type, bytes }: WireMessage): WireRequest | { bytes: Buffer; text?: undefined } | undefined {
    if (!'QPBDECSH'.includes(type)) return { bytes };
    this.#parts.push(bytes);
    if (type === 'Q') this.#text = textAt(bytes, 5).text;
    if (type === 'P') {
      const name = textAt(bytes, 5);
      this.#text = textAt(bytes, name.end).text;
      this.#prepared.set(name.text, this.#text);
    }
    // A Bind names its portal first, then its statement.
    if (type === 'B') this.#text = this.#prepared.get(textAt(bytes, textAt(bytes, 5).end).text) ?? this.#text;
    if (type !== 'Q' && type !== 'S') return undefined;
    const request = { text: this.#text, bytes: Buffer.concat(this.#parts) };
    this.#parts = [];
    this.#text = '';
    return request;
  }
}

function textAt(bytes: Buffer, start: number): { text: string; end: number } {
  const end = bytes.indexOf(0, start);
  return { text: bytes.toString('utf8', start, end), end: end + 1 };
}

/** The name of the prepared statement that a client's message is about; empty for an unnamed one. */
export function nameOfStatement(message: WireMessage): string | undefined {
  const start = startOfName(message);
  return start === undefined ? undefined : textAt(message.bytes, start).text;
}

export function renameStatement(message: WireMessage, name: string): Buffer {
  const start = startOfName(message);
  if (start === undefined) return message.bytes;
  const { bytes, type } = message;
  const before = bytes.subarray(5, start);
  return frame(type, Buffer.concat([before, Buffer.from(`${name}\0`), bytes.subarray(textAt(bytes, start).end)]));
}

function startOfName({ type, bytes }: WireMessage): number | undefined {
  if (type === 'P') return 5;
  if (type === 'B') return textAt(bytes, 5).end;
  const isOfStatement = (type === 'D' || type === 'C') && bytes[5] === 'S'.charCodeAt(0);
  return isOfStatement ? 6 : undefined;
}

/** An error with the state of the transaction after it: `I` outside of one, `E` in one that has failed. */
export function errorAnswer(code: string, message: string, state: 'I' | 'E'): Buffer {
  const fields = Buffer.from(`SERROR\0VERROR\0C${code}\0M${message}\0\0`);
  return Buffer.concat([frame('E', fields), frame('Z', Buffer.from(state))]);
}

export function simpleQuery(text: string): Buffer {
  return frame('Q', Buffer.from(`${text}\0`));
}

function frame(type: string, body: Buffer): Buffer {
  const head = Buffer.alloc(5);
  head.write(type);
  head.writeInt32BE(body.length + 4, 1);
  return Buffer.concat([head, body]);
}
