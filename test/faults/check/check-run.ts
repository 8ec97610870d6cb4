// The offline checker: proves I1 to I12 from the logs of a run, or names the lines that break them.
import { readdirSync } from 'node:fs';
import type { Effect } from '../../support/model/effects.ts';
import { brokenHistories } from '../../support/model/histories.ts';
import type { DaemonRecord } from '../daemons.ts';
import type { Operation } from '../load/operations.ts';
import type { ReleaseRecord } from '../load/remote-worker.ts';
import type { StreamRecord } from '../load/stream.ts';
import type { ReceivedWebhook } from '../load/webhooks.ts';
import { RunLog } from '../run-log.ts';
import type { EventRecord, FoundByVerify, JobRecord, MetricsRecord, ResourceRecord } from '../snapshot.ts';
import { checkAcknowledged } from './acknowledged.ts';
import { checkAttempts } from './attempts.ts';
import { checkDaemons } from './daemons.ts';
import { checkEffectsLog } from './effects.ts';
import { checkOperations } from './operations.ts';
import { checkStream } from './stream.ts';
import { checkTicks } from './ticks.ts';
import type { Violation } from './violation.ts';
import { checkWaits } from './waits.ts';

export function checkRun(directory: string): Violation[] {
  const log = new RunLog(directory);
  const effects = log.read<Effect>('effects.jsonl');
  const daemons = log.read<DaemonRecord>('daemons.jsonl');
  const operations = log.read<Operation>('operations.jsonl');
  const releases = log.read<ReleaseRecord>('releases.jsonl');
  const tenants = log.read<{ slug: string; followed: boolean }>('tenants.jsonl');
  const webhooks = log.read<ReceivedWebhook>('webhooks.jsonl');
  const violations: Violation[] = [];
  for (const [index, { slug, followed }] of tenants.entries()) {
    const jobs = log.read<JobRecord>(`jobs-${index}.jsonl`);
    const events = log.read<EventRecord>(`events-${index}.jsonl`);
    const ours = new Set(jobs.map(({ id }) => id));
    const own = {
      jobs,
      events,
      daemons,
      effects: effects.filter(({ job }) => ours.has(job)),
      operations: operations.filter(({ tenant }) => tenant === slug),
      releases: releases.filter(({ tenant }) => tenant === slug),
      resources: log.read<ResourceRecord>(`resources-${index}.jsonl`),
      webhooks: webhooks.filter(({ job }) => ours.has(job)),
    };
    violations.push(
      ...checkEffectsLog(own),
      ...checkOperations(own),
      ...checkAttempts(own),
      ...checkWaits(own),
      ...checkAcknowledged(own),
      ...checkTicks(events),
      ...brokenHistories(events).map(({ text, event }) => ({ ...splitName(text), place: event.place })),
      ...(followed ? checkStream(log.read<StreamRecord>(`stream-${index}.jsonl`), events) : []),
    );
  }
  for (const { text, place } of log.read<FoundByVerify>('verify.jsonl')) {
    violations.push({ ...splitName(text), place });
  }
  const output = readdirSync(directory)
    .filter((name) => name.startsWith('output-'))
    .flatMap((name) => log.read<{ line: string }>(name));
  violations.push(...checkDaemons({ daemons, metrics: log.read<MetricsRecord>('metrics.jsonl'), output }));
  return violations;
}

/** A finding of `leasehold verify` has the name of its check in place of an invariant. */
function splitName(text: string): Pick<Violation, 'invariant' | 'text'> {
  const [, invariant = '', rest = ''] = /^(\S+) ([\s\S]*)$/.exec(text) ?? [];
  return { invariant, text: rest };
}
