// leasehold schedules: list, show, pause, resume, run and delete schedules.
import type { Command } from 'commander';
import type { LeaseholdClient } from '../../client/client.ts';
import type { Schedule } from '../../client/generated/api-types.ts';
import { problem } from '../../kernel/errors.ts';
import { type ConnectionOptions, connect, withConnection } from '../connection.ts';
import { facts, fitTable } from '../output.ts';
import type { Session } from '../session.ts';

export function addScheduleCommands(program: Command, session: Session): void {
  const schedules = program.command('schedules').description('list, show, pause, resume, run and delete schedules');
  withConnection(schedules.command('list'))
    .description('list schedules by name')
    .action(async (options: ConnectionOptions) => {
      const found = await (await connect(session, options)).schedules.list().take(1000);
      const rows = found.map((s) => [
        s.id,
        s.name,
        s.cron,
        s.timezone,
        s.paused ? 'paused' : (s.next_at ?? ''),
        typeOf(s),
      ]);
      const headings = ['ID', 'NAME', 'CRON', 'TIME ZONE', 'NEXT', 'JOB'];
      session.print(found, found.length === 0 ? 'no schedules' : fitTable(session.terminal.screen, headings, rows));
    });
  const each = (
    verb: string,
    description: string,
    run: (client: LeaseholdClient, schedule: Schedule) => Promise<[unknown, string]>,
  ) =>
    withConnection(schedules.command(`${verb} <schedule>`))
      .description(description)
      .action(async (name: string, options: ConnectionOptions) => {
        const client = await connect(session, options);
        session.print(...(await run(client, await scheduleOf(client, name))));
      });
  each('show', 'show a schedule, by its name or id', async (_client, schedule) => [schedule, scheduleText(schedule)]);
  each('pause', 'enqueue nothing until it is resumed', async (client, { id }) => {
    const schedule = await client.schedules.pause(id);
    return [schedule, `${schedule.name} is paused`];
  });
  each('resume', 'continue with the next time from now', async (client, { id }) => {
    const schedule = await client.schedules.resume(id);
    return [schedule, `${schedule.name} runs next at ${schedule.next_at}`];
  });
  each('run', 'enqueue its job now, beside its times', async (client, { id }) => {
    const { job } = await client.schedules.run(id);
    return [job, `enqueued ${job.id}`];
  });
  each('delete', 'delete a schedule; the jobs it made stay', async (client, schedule) => {
    await client.schedules.delete(schedule.id);
    return [schedule, `deleted ${schedule.name}`];
  });
}

async function scheduleOf(client: LeaseholdClient, text: string): Promise<Schedule> {
  for await (const schedule of client.schedules.list())
    if (schedule.name === text || schedule.id === text) return schedule;
  throw problem('NOT_FOUND', `There is no schedule with the name or id ${text}.`);
}

function typeOf({ job }: Schedule): string {
  return String(job.type);
}

function scheduleText(schedule: Schedule): string {
  return facts({
    id: schedule.id,
    name: schedule.name,
    cron: `${schedule.cron} (${schedule.timezone})`,
    job: JSON.stringify(schedule.job),
    missed: schedule.missed,
    paused: schedule.paused ? `by ${schedule.paused_by} at ${schedule.paused_at}` : 'no',
    next: schedule.next_runs.join(', '),
    last: schedule.last_fired_at === null ? 'never' : `${schedule.last_fired_at} (${schedule.last_job_id})`,
  });
}
