// What a run did, in one line.
import type { Effect } from '../support/model/effects.ts';
import type { Operation } from './load/operations.ts';
import type { RunLog } from './run-log.ts';

export function describeRun(log: RunLog, seed: number): string {
  const operations = log.read<Operation>('operations.jsonl');
  const count = (outcome: Operation['outcome']) => operations.filter((one) => one.outcome === outcome).length;
  const faults = log.read<{ fault: string; ms?: number }>('faults.jsonl');
  const drained = faults.find(({ fault }) => fault === 'drained')?.ms ?? Number.NaN;
  const injected = faults.filter(({ fault }) => fault !== 'drained' && fault !== 'healed').length;
  const begins = log.read<Effect>('effects.jsonl').filter(({ kind }) => kind === 'begin').length;
  const events = [0, 1].reduce((sum, index) => sum + log.read(`stream-${index}.jsonl`).length, 0);
  return (
    `seed ${seed}: ${injected} faults, ${operations.length} operations (${count('ok')} ok, ${count('failed')} failed, ` +
    `${count('unknown')} unknown), ${begins} starts of handlers, ${events} events in streams; ` +
    `drained ${(drained / 1000).toFixed(1)} s after the last fault`
  );
}
