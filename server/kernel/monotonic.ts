// The clock by which a process judges what it was granted: it never jumps, and is the same in all threads of the process.

export function monotonicMs(): number {
  return Number(process.hrtime.bigint() / 1000n) / 1000;
}
