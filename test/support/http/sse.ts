// A reader of server-sent events, as a user without a library would write one.
import { onTestFinished } from 'vitest';
import { eventually } from '../eventually.ts';

export interface Message {
  id: string | undefined;
  event: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read answers as a client without types would.
  data: any;
}

export class EventReader {
  readonly response: Response;
  readonly messages: Message[] = [];
  ended = false;
  #abort: AbortController;

  private constructor(response: Response, abort: AbortController) {
    this.response = response;
    this.#abort = abort;
    void this.#read();
  }

  static async open(url: string, options: { key: string; lastEventId?: string | undefined }): Promise<EventReader> {
    const abort = new AbortController();
    const headers: Record<string, string> = { authorization: `Bearer ${options.key}` };
    if (options.lastEventId !== undefined) headers['last-event-id'] = options.lastEventId;
    const response = await fetch(url, { headers, signal: abort.signal });
    const reader = new EventReader(response, abort);
    onTestFinished(() => reader.close());
    return reader;
  }

  /** The events, without pings. */
  get events(): Message[] {
    return this.messages.filter((message) => message.event !== 'ping');
  }

  get lastId(): string | undefined {
    return this.messages.findLast((message) => message.id !== undefined)?.id;
  }

  async until(condition: (reader: EventReader) => boolean): Promise<this> {
    await eventually(() => {
      if (!condition(this)) throw new Error(`not yet; so far: ${this.messages.map((m) => m.event).join(' ')}`);
    });
    return this;
  }

  /** Waits for the stream to be open and live. */
  ready(): Promise<this> {
    return this.until((reader) => reader.messages.length > 0);
  }

  close(): void {
    this.#abort.abort();
  }

  async #read(): Promise<void> {
    const decoder = new TextDecoder();
    let text = '';
    try {
      for await (const chunk of this.response.body as unknown as AsyncIterable<Uint8Array>) {
        text += decoder.decode(chunk, { stream: true });
        const frames = text.split('\n\n');
        text = frames.pop() ?? '';
        for (const frame of frames) this.messages.push(parse(frame));
      }
    } catch {
      // Aborted or cut off. The frames that arrived count.
    }
    this.ended = true;
  }
}

function parse(frame: string): Message {
  const field = (name: string) =>
    frame
      .split('\n')
      .find((line) => line.startsWith(`${name}: `))
      ?.slice(name.length + 2);
  return { id: field('id'), event: field('event') ?? 'message', data: JSON.parse(field('data') ?? 'null') };
}
