// Reads an answer to its end without keeping it: one that never ends, or a very large one, must not take the
// daemon's memory or the handler's time.

export class TooManyBytes extends Error {
  override name = 'TooManyBytes';
}

export async function countBytes(body: AsyncIterable<Uint8Array> | null, maxBytes: number): Promise<number> {
  if (body === null) return 0;
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.byteLength;
    // Leaving the loop cancels the body.
    if (bytes > maxBytes) throw new TooManyBytes(`The answer has more than ${maxBytes} bytes`);
  }
  return bytes;
}
