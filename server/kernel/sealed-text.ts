// Tokens that clients keep and return: encrypted, so that they reveal nothing, and authenticated, so that forged ones
// are refused. A text always gives the same token (synthetic IV), on every daemon.
import { createCipheriv, createDecipheriv, createHmac, timingSafeEqual } from 'node:crypto';

const ivBytes = 16;
// Padding hides the length.
const blockChars = 24;

/** `purpose` separates uses of one secret: a token for one is refused by another. */
export function sealText(secret: string, purpose: string, text: string): string {
  const padded = Buffer.from(text.padEnd(Math.ceil(text.length / blockChars) * blockChars, ' '));
  const iv = ivOf(secret, purpose, padded);
  const cipher = createCipheriv('aes-256-ctr', keyOf(secret, purpose, 'cipher'), iv);
  return Buffer.concat([iv, cipher.update(padded), cipher.final()]).toString('base64url');
}

/** Undefined if it was not sealed with this secret and purpose. */
export function openText(secret: string, purpose: string, sealed: string): string | undefined {
  const bytes = Buffer.from(sealed, 'base64url');
  if (bytes.length < ivBytes) return undefined;
  const iv = bytes.subarray(0, ivBytes);
  const decipher = createDecipheriv('aes-256-ctr', keyOf(secret, purpose, 'cipher'), iv);
  const padded = Buffer.concat([decipher.update(bytes.subarray(ivBytes)), decipher.final()]);
  return timingSafeEqual(iv, ivOf(secret, purpose, padded)) ? padded.toString().trimEnd() : undefined;
}

function ivOf(secret: string, purpose: string, text: Buffer): Buffer {
  return createHmac('sha256', keyOf(secret, purpose, 'mac'))
    .update(text)
    .digest()
    .subarray(0, ivBytes);
}

function keyOf(secret: string, purpose: string, use: 'cipher' | 'mac'): Buffer {
  return createHmac('sha256', secret).update(`${use}:${purpose}`).digest();
}
