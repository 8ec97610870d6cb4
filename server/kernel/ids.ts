// Ids of rows: UUIDs of version 7, ascending within a process.
import { randomFillSync } from 'node:crypto';
import { v7 } from 'uuid';

// One call for random bytes costs as much as the rest of a hundred ids.
const random = Buffer.alloc(16 * 256);
let used = random.length;
let msecs = 0;
let seq = 0;

export function newId(): string {
  if (used === random.length) {
    randomFillSync(random);
    used = 0;
  }
  const bytes = random.subarray(used, used + 16);
  used += 16;
  const now = Date.now();
  if (now > msecs) {
    msecs = now;
    // The highest bit is left for the ids of the same millisecond.
    seq = bytes.readUInt32BE(6) & 0x7fffffff;
  } else seq = (seq + 1) >>> 0;
  return v7({ random: bytes, msecs, seq });
}
