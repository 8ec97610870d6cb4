// The processes (I12): none ends by itself, none holds callers or memory for ever, and none had to repair what should
// never exist (I2, I3).
import type { DaemonRecord } from '../daemons.ts';
import type { Logged } from '../run-log.ts';
import type { MetricsRecord } from '../snapshot.ts';
import type { Violation } from './violation.ts';

export interface DaemonsInput {
  daemons: Logged<DaemonRecord>[];
  metrics: Logged<MetricsRecord>[];
  output: Logged<{ line: string }>[];
}

const maxResidentBytes = 600 * 1024 * 1024;

/** Log lines of repairs. Each repair means a broken invariant. */
const repairs: Record<string, string> = {
  'jobs had no active lease; their leases were reopened': 'I3',
  'lane had no head and was repaired': 'I2',
};

export function* checkDaemons({ daemons, metrics, output }: DaemonsInput): Generator<Violation> {
  for (const { event, name, code, signal, expected, place } of daemons) {
    if (event !== 'exited' || expected) continue;
    yield { invariant: 'I12', text: `${name} ended by itself with ${signal ?? code}`, place };
  }
  for (const { name, poolWaiters, residentBytes, place } of metrics) {
    if (poolWaiters > 0) yield { invariant: 'I12', text: `${name} has ${poolWaiters} waiters for connections`, place };
    if (residentBytes > maxResidentBytes)
      yield { invariant: 'I12', text: `${name} uses ${residentBytes} bytes`, place };
  }
  for (const { line, place } of output) {
    for (const [text, invariant] of Object.entries(repairs)) {
      if (line.includes(`"${text}"`)) yield { invariant, text: line.slice(0, 400), place };
    }
    if (/uncaught|unhandled rejection/i.test(line)) yield { invariant: 'I12', text: line.slice(0, 400), place };
  }
}
