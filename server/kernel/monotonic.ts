// The clock for leases: it never jumps, and all threads of the process share it.

export function monotonicMs(): number {
  return Number(process.hrtime.bigint() / 1000n) / 1000;
}
