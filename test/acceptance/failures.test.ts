// What a person finds out about a failed attempt: from the API, the events and the log of a built daemon.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../server/kernel/environment.ts';
import { useBuild } from '../support/daemon/build.ts';
import { type DaemonProcess, startProcess } from '../support/daemon/process.ts';
import { eventually } from '../support/eventually.ts';
import { addJob, reread } from '../support/jobs.ts';
import { useTenant } from '../support/postgres/database.ts';

const context = useTenant();
useBuild();
const command: [string, ...string[]] = [process.execPath, 'scripts/bootstrap.mjs', 'start'];

interface Failed {
  id: string;
  status: string;
  error: { name: string; stack: string; cause?: { name: string; message: string; stack: string } };
}

test('a handler of the build: the stack names its line in the source', async () => {
  const daemon = await startProcess(context, { command, env: { HANDLERS: '', LOG_LEVEL: 'debug' } });
  const job = await failedJob(daemon, 'demo.fail', { recoverable: false });
  expect(job.error).toMatchObject({ name: 'Fatal', message: 'failing on purpose, attempt 1 of 1' });
  expect(job.error.stack).toContain(
    `${packageRoot()}/server/demo/handlers.ts:${lineOf('server/demo/handlers.ts', 'new Fatal(')}:`,
  );

  const events = (await daemon.request('GET', `/api/jobs/${job.id}/events`)).body as unknown as {
    events: { type: string; data: object }[];
  };
  expect(events.events.find((event) => event.type === 'job.failed')?.data).toMatchObject({ error: job.error });
  const list = (await daemon.request('GET', '/api/jobs')).body as unknown as { jobs: Failed[] };
  expect(list.jobs[0]?.error).toMatchObject({ name: 'Fatal' });
  expect(list.jobs[0]?.error).not.toHaveProperty('stack');

  const about = { tenant: context.tenant.slug, jobId: job.id, type: 'demo.fail', targetId: 'machine', attempt: 1 };
  await eventually(() => {
    expect(linesOf(daemon, 'attempt failed')).toMatchObject([
      { level: 40, ...about, outcome: 'fail', error: job.error },
    ]);
  });
  expect(linesOf(daemon, 'jobs claimed')).toMatchObject([{ level: 20, workerId: daemon.name, jobIds: [job.id] }]);
  expect(linesOf(daemon, 'attempt started')).toMatchObject([{ level: 20, ...about }]);
});

test('a handler in a thread: name, stack and cause are kept', async () => {
  const daemon = await startProcess(context, { command, env: { HANDLERS: 'test/fixtures/isolated.ts' } });
  const { error } = await failedJob(daemon, 'isolated.thrower', {});
  const place = `test/fixtures/isolated.ts:${lineOf('test/fixtures/isolated.ts', 'new TypeError(')}:`;
  expect(error).toMatchObject({
    name: 'TypeError',
    message: 'no such thing',
    cause: { name: 'RangeError', message: 'too far' },
  });
  expect(error.stack).toContain(place);
  expect(error.cause?.stack).toContain(place);
});

test('leaseholdd: stacks name source lines, and at debug the log has heartbeats, stop requests and ends', async () => {
  const daemon = await startProcess(context, { env: { HANDLERS: '', LOG_LEVEL: 'debug' } });
  const failed = await failedJob(daemon, 'demo.fail', { recoverable: false });
  expect(failed.error.stack).toContain(
    `${packageRoot()}/server/demo/handlers.ts:${lineOf('server/demo/handlers.ts', 'new Fatal(')}:`,
  );
  const job = await addJob(context, { type: 'demo.sleep', payload: { seconds: 600 } });
  await eventually(() => expect(linesOf(daemon, 'leases renewed').length).toBeGreaterThan(0));
  // The lease that was renewed may have been that of the first job.
  await eventually(async () => expect((await reread(context, job)).status).toBe('RUNNING'));
  await daemon.request('POST', `/api/jobs/${job.id}/cancel`, { reason: 'enough' });
  await eventually(async () => expect((await reread(context, job)).status).toBe('CANCELED'));
  await eventually(() => {
    expect(linesOf(daemon, 'stop requested')[0]).toMatchObject({
      jobId: job.id,
      intent: 'cancel',
      detail: { reason: 'enough' },
    });
    expect(linesOf(daemon, 'attempt ended')).toMatchObject([{ jobId: job.id, outcome: 'stopCanceled' }]);
  });
});

async function failedJob(daemon: DaemonProcess, type: string, payload: object): Promise<Failed> {
  const job = await addJob(context, { type, payload, targetId: 'machine', onError: 'continue' });
  return eventually(async () => {
    const { body } = await daemon.request('GET', `/api/jobs/${job.id}`);
    expect(body.status).toBe('ERROR');
    return body as unknown as Failed;
  });
}

function lineOf(file: string, text: string): number {
  return (
    readFileSync(join(packageRoot(), file), 'utf8')
      .split('\n')
      .findIndex((line) => line.includes(text)) + 1
  );
}

function linesOf(daemon: DaemonProcess, message: string): object[] {
  const lines = daemon
    .output()
    .split('\n')
    .filter((line) => line.startsWith('{') && line.endsWith('}'));
  return lines.map((line) => JSON.parse(line) as { msg: string }).filter((line) => line.msg === message);
}
