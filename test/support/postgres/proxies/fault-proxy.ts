// A proxy between a daemon and a database server that reads the wire protocol. It can cut, swallow, slow down or
// refuse connections, and treat single requests: keep them until their client has given them up, keep or drop their
// answers, or answer with an error itself.
import { connect, createServer, type Server, type Socket } from 'node:net';
import { errorAnswer, MessageReader, RequestReader, simpleQuery, type WireMessage, type WireRequest } from './wire.ts';

/**
 * What happens to a request:
 * - `holdRequest`: it and all later ones of its connection wait for `deliver`, also when the client is gone.
 * - `holdAnswer`: the server handles it; its answer and all later ones of its connection wait for `deliver`.
 * - `dropAnswer`: the server handles it, then the connection is cut in place of the answer.
 * - a refusal: the server never gets it; the proxy answers with the error.
 */
export type Treatment = 'holdRequest' | 'holdAnswer' | 'dropAnswer' | Refusal;

type Refusal = keyof typeof refusals;

/** Answers of a server with a full disk, with one that fails, of a standby, and to one of two conflicting transactions. */
const refusals = {
  diskFull: { code: '53100', message: 'could not extend file: No space left on device' },
  diskFails: { code: '58030', message: 'could not write to file "base/1/1": Input/output error' },
  readOnly: { code: '25006', message: 'cannot execute this statement in a read-only transaction' },
  serializationFailure: { code: '40001', message: 'could not serialize access due to concurrent update' },
  deadlock: { code: '40P01', message: 'deadlock detected' },
};

const afterRefusal = { code: '25P02', message: 'current transaction is aborted' };

interface Rule {
  matches: RegExp | string;
  treatment: Treatment;
  /** For so many requests; then the rule is gone. */
  times: number;
}

interface Pending {
  text: string;
  treatment: Treatment | undefined;
  /** The proxy's own answer. The server has not got the request. */
  answer?: Buffer;
}

interface Link {
  near: Socket;
  far: Socket;
  pending: Pending[];
  heldRequests: Buffer[] | undefined;
  heldAnswers: Buffer[] | undefined;
  inTransaction: boolean;
  /** The proxy answered an error within a transaction. */
  failed: boolean;
  greeted: boolean;
}

type Mode = 'pass' | 'blackHole' | 'refuse';

export class FaultProxy {
  readonly #servers: Server[] = [];
  readonly #links = new Set<Link>();
  #rules: Rule[] = [];
  #mode: Mode = 'pass';
  #delayMs = 0;
  /** How many requests each rule treated, by treatment. */
  readonly treated: Record<Treatment, number> = {
    holdRequest: 0,
    holdAnswer: 0,
    dropAnswer: 0,
    diskFull: 0,
    diskFails: 0,
    readOnly: 0,
    serializationFailure: 0,
    deadlock: 0,
  };

  private constructor() {}

  static async start(port: number, host = '127.0.0.1'): Promise<FaultProxy> {
    const proxy = new FaultProxy();
    await proxy.listen(port, host);
    return proxy;
  }

  /** Returns the port of the proxy before a further server. */
  async listen(port: number, host: string): Promise<number> {
    const server = createServer((near) => this.#open(near, connect(port, host)));
    this.#servers.push(server);
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    return portOf(server);
  }

  /** The port before the first server. */
  get port(): number {
    return portOf(this.#servers[0]);
  }

  /** The next `times` requests whose SQL matches, or that contain the text, also in a value, are treated like this. */
  treat(matches: RegExp | string, treatment: Treatment, times = 1): void {
    this.#rules.push({ matches, treatment, times });
  }

  /** Requests that have been held or kept without an answer so far. */
  get held(): number {
    return [...this.#links].filter((link) => link.heldRequests !== undefined || link.heldAnswers !== undefined).length;
  }

  /** Removes all rules and forwards everything that was held. Resolves when servers have handled late requests. */
  async deliver(): Promise<void> {
    this.#rules = [];
    const late: Promise<void>[] = [];
    for (const link of this.#links) {
      for (const data of link.heldAnswers ?? []) write(link.near, data);
      link.heldAnswers = undefined;
      if (link.heldRequests === undefined) continue;
      const bytes = Buffer.concat(link.heldRequests);
      link.heldRequests = undefined;
      if (link.near.destroyed) {
        late.push(new Promise((resolve) => link.far.once('close', () => resolve())));
        link.far.end(bytes);
      } else write(link.far, bytes);
    }
    await Promise.all(late);
  }

  /** From now on nothing passes in either direction, and neither side learns of it. */
  blackHole(): void {
    this.#mode = 'blackHole';
  }

  /** Cuts every connection and refuses new ones. */
  refuse(): void {
    this.#mode = 'refuse';
    this.cut();
  }

  slow(delayMs: number): void {
    this.#delayMs = delayMs;
  }

  /** Passes everything again. Data that a black hole has swallowed stays lost, so its connections are cut. */
  async heal(): Promise<void> {
    const wasDark = this.#mode === 'blackHole';
    this.#mode = 'pass';
    this.#delayMs = 0;
    if (wasDark) this.cut();
    await this.deliver();
  }

  cut(): void {
    for (const { near, far } of this.#links) for (const socket of [near, far]) socket.destroy();
  }

  /** Only the client's side: the server does not notice while it has something to do, or if something is held. */
  cutClients(): void {
    for (const { near } of this.#links) near.destroy();
  }

  async stop(): Promise<void> {
    this.#mode = 'refuse';
    this.cut();
    await Promise.all(this.#servers.map((server) => new Promise((resolve) => server.close(resolve))));
  }

  #open(near: Socket, far: Socket): void {
    for (const socket of [near, far]) socket.on('error', () => {});
    if (this.#mode === 'refuse') {
      for (const socket of [near, far]) socket.destroy();
      return;
    }
    for (const socket of [near, far]) socket.setNoDelay(true);
    const link: Link = {
      near,
      far,
      pending: [],
      heldRequests: undefined,
      heldAnswers: undefined,
      inTransaction: false,
      failed: false,
      greeted: false,
    };
    this.#links.add(link);
    const fromClient = new MessageReader('client');
    const requests = new RequestReader();
    near.on('data', (data) => {
      for (const message of fromClient.read(data)) {
        if (message.type === 'offer') return passEncrypted(link, message.bytes);
        const request = requests.add(message);
        if (request !== undefined) this.#later(() => this.#onRequest(link, request));
      }
    });
    const fromServer = new MessageReader('server');
    far.on('data', (data) => {
      for (const message of fromServer.read(data)) this.#later(() => this.#onAnswer(link, message));
    });
    near.on('close', () => {
      if (link.heldRequests === undefined && this.#mode !== 'blackHole') far.destroy();
    });
    far.on('close', () => {
      this.#links.delete(link);
      if (this.#mode !== 'blackHole') near.destroy();
    });
  }

  #later(work: () => void): void {
    if (this.#delayMs > 0) setTimeout(work, this.#delayMs).unref();
    else work();
  }

  #onRequest(link: Link, request: WireRequest | { bytes: Buffer; text?: undefined }): void {
    if (this.#mode === 'blackHole') return;
    if (request.text === undefined) this.#toServer(link, request.bytes);
    else this.#onStatement(link, request);
  }

  #onStatement(link: Link, request: WireRequest): void {
    const { text } = request;
    const treatment = this.#treatmentOf(request);
    if (treatment === 'holdRequest') link.heldRequests ??= [];
    const refusal = treatment !== undefined && treatment in refusals ? refusals[treatment as Refusal] : undefined;
    if (refusal !== undefined || (link.failed && !endsTransaction.test(text))) {
      link.failed = link.inTransaction;
      const { code, message } = refusal ?? afterRefusal;
      const answer = errorAnswer(code, message, link.failed ? 'E' : 'I');
      link.pending.push({ text, treatment, answer });
      this.#answerOwn(link);
      return;
    }
    link.pending.push({ text, treatment });
    // The server does not know that the transaction has failed.
    const bytes = link.failed ? simpleQuery('ROLLBACK') : request.bytes;
    if (beginsTransaction.test(text)) link.inTransaction = true;
    if (endsTransaction.test(text)) link.inTransaction = link.failed = false;
    this.#toServer(link, bytes);
  }

  #treatmentOf({ text, bytes }: WireRequest): Treatment | undefined {
    const rule = this.#rules.find(({ matches }) =>
      typeof matches === 'string' ? bytes.includes(matches) : matches.test(text),
    );
    if (rule === undefined) return undefined;
    rule.times -= 1;
    if (rule.times <= 0) this.#rules = this.#rules.filter((one) => one !== rule);
    this.treated[rule.treatment] += 1;
    return rule.treatment;
  }

  #toServer(link: Link, bytes: Buffer): void {
    if (link.heldRequests !== undefined) link.heldRequests.push(bytes);
    else write(link.far, bytes);
  }

  #onAnswer(link: Link, { type, bytes }: WireMessage): void {
    if (this.#mode === 'blackHole') return;
    const [request] = link.greeted ? link.pending : [];
    const isReady = type === 'Z';
    if (request?.treatment === 'holdAnswer') link.heldAnswers ??= [];
    if (request?.treatment !== 'dropAnswer') this.#toClient(link, bytes);
    else if (isReady) for (const socket of [link.near, link.far]) socket.destroy();
    if (!isReady) return;
    if (link.greeted) link.pending.shift();
    link.greeted = true;
    this.#answerOwn(link);
  }

  /** Answers keep the order of their requests. */
  #answerOwn(link: Link): void {
    while (link.pending[0]?.answer !== undefined) this.#toClient(link, link.pending.shift()?.answer as Buffer);
  }

  #toClient(link: Link, bytes: Buffer): void {
    if (link.heldAnswers !== undefined) link.heldAnswers.push(bytes);
    else write(link.near, bytes);
  }
}

const beginsTransaction = /^\s*begin\b/i;
const endsTransaction = /^\s*(commit|rollback)\b/i;

/** The coordinator of a cluster encrypts its connections to the nodes. Nothing of them can be treated. */
function passEncrypted({ near, far }: Link, offer: Buffer): void {
  for (const socket of [near, far]) socket.removeAllListeners('data');
  write(far, offer);
  near.pipe(far);
  far.pipe(near);
}

function portOf(server: Server | undefined): number {
  const address = server?.address();
  return typeof address === 'object' && address !== null ? address.port : 0;
}

function write(socket: Socket, bytes: Buffer): void {
  if (!socket.destroyed && socket.writable) socket.write(bytes);
}
