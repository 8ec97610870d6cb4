// Server-sent events from the body of a response. Bytes may be cut anywhere.

export interface SseMessage {
  id: string | undefined;
  event: string;
  data: string;
}

export async function* readMessages(body: ReadableStream<Uint8Array>, onBytes: () => void): AsyncGenerator<SseMessage> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onBytes();
      text += decoder.decode(value, { stream: true });
      for (;;) {
        const end = /\r?\n\r?\n/.exec(text);
        if (end === null) break;
        const message = parse(text.slice(0, end.index));
        text = text.slice(end.index + end[0].length);
        if (message !== undefined) yield message;
      }
    }
  } finally {
    // Also when the consumer leaves the loop.
    void reader.cancel().catch(() => {});
  }
}

function parse(frame: string): SseMessage | undefined {
  let id: string | undefined;
  let event = 'message';
  const data: string[] = [];
  for (const line of frame.split(/\r?\n/)) {
    const colon = line.indexOf(':');
    if (colon === 0) continue;
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'id') id = value;
    else if (field === 'event') event = value;
    else if (field === 'data') data.push(value);
  }
  return data.length === 0 && id === undefined ? undefined : { id, event, data: data.join('\n') };
}
