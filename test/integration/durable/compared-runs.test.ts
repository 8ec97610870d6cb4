// One attempt of a job at a time, without a heartbeat: code that changed between `run` and phases since the last one, and stop
// requests that only the answers of durable calls tell of.
import { expect, test } from 'vitest';
import { cancelJob, pauseJob } from '../../../server/jobs/actions/pause-and-cancel.ts';
import { resumeJob } from '../../../server/jobs/actions/resume.ts';
import { listPhases } from '../../../server/jobs/attempt/phases.ts';
import { jobError } from '../../../server/jobs/model/job-errors.ts';
import { defineJob, type JobDefinition } from '../../../server/worker/handlers/define-job.ts';
import type { JobContext } from '../../../server/worker/handlers/job-context.ts';
import { startClaimed } from '../../support/daemon/handlers.ts';
import { addJob, finish } from '../../support/jobs.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();

async function storedOf({ id }: { id: string }): Promise<string[]> {
  const phases = await listPhases(context.db, context.schema, id);
  return phases.map(({ kind, name, status }) => `${kind} ${name} ${status}`);
}

test('an error names a type that changed between run and phases, or lost a completed phase', async () => {
  const type = 'test.changed';
  const stop = () => {
    throw new Error('stop');
  };
  const withSteps = defineJob({
    type,
    async run({ step }: JobContext) {
      await step('charge', () => 1);
      stop();
    },
  });
  const charge = { name: 'charge', run: () => 1 };
  const withPhases = defineJob({ type, phases: [charge, { name: 'stop', run: stop }] });
  const fewerPhases = defineJob({ type, phases: [{ name: 'stop', run: () => 2 }] });
  const plain = defineJob({ type, run: () => 'nothing done' });
  const missing = (message: string) => ({ kind: 'failed', error: { code: 'STEP_MISSING', message } });

  const attempts: [JobDefinition, JobDefinition, string][] = [
    [withSteps, plain, 'An earlier run made the durable call "charge"; this run ended without it.'],
    [withSteps, withPhases, 'An earlier run made the durable call "charge"; the code of this one does not have it.'],
    [withPhases, plain, 'An earlier run completed the phase "charge"; this run ended without it.'],
    [withPhases, fewerPhases, 'An earlier run completed the phase "charge"; the code of this one does not have it.'],
  ];
  for (const [before, after, message] of attempts) {
    const added = await addJob(context, { type });
    const again = async (definition: JobDefinition) => {
      const ran = await (await startClaimed(context, definition, added.id)).end;
      await finish(context, ran.job, { kind: 'fail', error: jobError('HANDLER_ERROR', 'stop') });
      await resumeJob(context.db, context.schema, { jobId: added.id, actor: 'user:ann' });
      return ran.end;
    };
    expect(await again(before)).toMatchObject({ kind: 'failed', error: { message: 'stop' } });
    const stored = await storedOf(added);
    expect(await again(after)).toMatchObject(missing(message));
    expect(await storedOf(added)).toEqual(stored);
    // The code that fits continues.
    expect(await again(before)).toMatchObject({ kind: 'failed', error: { message: 'stop' } });
    await cancelJob(context.db, context.schema, { jobId: added.id, actor: 'user:ann' });
  }
});

test('an error names a phase that comes before one that has ended; other changes of the order are taken over', async () => {
  const type = 'test.reordered';
  const attempt = async (id: string, names: string[], failing?: string) => {
    const ran: string[] = [];
    const phases = names.map((name) => ({
      name,
      when: () => name !== 'skipped',
      run: () => {
        ran.push(name);
        if (name === failing) throw new Error('stop');
      },
    }));
    const { end, job } = await (await startClaimed(context, defineJob({ type, phases }), id)).end;
    if (end.kind === 'failed') {
      await finish(context, job, { kind: 'fail', error: end.error });
      await resumeJob(context.db, context.schema, { jobId: id, actor: 'user:ann' });
    }
    return { end, ran };
  };
  const cases: { after: string[]; error?: string; ran?: string[]; stored?: string[] }[] = [
    { after: ['b', 'a', 'skipped', 'stop', 'last'], error: 'ended the phase "a" first; the code of this one has "b"' },
    { after: ['a', 'new', 'b', 'skipped', 'stop'], error: 'ended the phase "b" first; the code of this one has "new"' },
    {
      after: ['stop', 'a', 'b', 'skipped', 'last'],
      error: 'ended the phase "a" first; the code of this one has "stop"',
    },
    { after: ['a', 'b', 'skipped', 'last', 'new', 'stop'], ran: ['last', 'new', 'stop'] },
    { after: ['a', 'b', 'stop', 'last'], ran: ['stop', 'last'] },
  ];
  for (const { after, error, ran } of cases) {
    const added = await addJob(context, { type });
    await attempt(added.id, ['a', 'b', 'skipped', 'stop', 'last'], 'stop');
    const stored = await storedOf(added);
    expect(stored).toContain('phase skipped skipped');
    const changed = await attempt(added.id, after);
    if (error === undefined) {
      expect([changed.end.kind, changed.ran]).toEqual(['completed', ran]);
      const shown = (await listPhases(context.db, context.schema, added.id)).map(({ name }) => name);
      expect(shown.filter((name) => after.includes(name))).toEqual(after);
      continue;
    }
    expect(changed).toMatchObject({ ran: [], end: { kind: 'failed', error: { code: 'STEP_ORDER_CHANGED' } } });
    expect(changed.end.kind === 'failed' && changed.end.error.message).toContain(error);
    expect(await storedOf(added)).toEqual(stored);
    // The code that fits continues.
    expect(await attempt(added.id, ['a', 'b', 'skipped', 'stop', 'last'])).toMatchObject({ ran: ['stop', 'last'] });
  }
});

test.each(['cancel', 'pause'] as const)('no call begins after a requested %s, before any heartbeat', async (intent) => {
  const request = intent === 'cancel' ? cancelJob : pauseJob;
  const next: Record<string, (given: JobContext) => Promise<unknown>> = {
    step: ({ step }) => step('next', () => 'begun'),
    sleep: ({ sleepFor }) => sleepFor(1),
    event: ({ waitForEvent }) => waitForEvent('never.comes', { timeoutSeconds: 1 }),
    question: ({ ask }) => ask({ title: 'Late?', actions: ['Yes', 'No'] }),
    children: ({ fanOut }) => fanOut('many', [1], () => ({ type: 'demo.echo' })),
    enqueue: ({ enqueue }) => enqueue('demo.echo', {}),
  };
  for (const [kind, code] of Object.entries(next)) {
    for (const first of [true, false]) {
      if (kind === 'enqueue' && first) continue;
      const added = await addJob(context, { type: `test.${intent}` });
      const stop = () => request(context.db, context.schema, { jobId: added.id, actor: 'user:ann', reason: 'enough' });
      const definition = defineJob({
        type: `test.${intent}`,
        async run(given: JobContext) {
          if (first) await stop();
          else await given.step('before', stop);
          return code(given);
        },
      });
      const { end, stops } = await (await startClaimed(context, definition, added.id)).end;
      expect([kind, end.kind], kind).toEqual([kind, 'failed']);
      expect(stops).toMatchObject([{ kind: intent === 'cancel' ? 'canceled' : 'paused', by: { reason: 'enough' } }]);
      const phases = await listPhases(context.db, context.schema, added.id);
      expect(phases.map(({ name }) => name)).toEqual(first ? [] : ['before']);
    }
  }
});
