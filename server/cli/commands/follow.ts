// leasehold events, leasehold workers: follow the event log, send events from outside, list the daemons.
import type { Command } from 'commander';
import { type ConnectionOptions, connect, withConnection } from '../connection.ts';
import { age, fitTable } from '../output.ts';
import type { Session } from '../session.ts';
import { countOf, eventText, readJson } from './job-reads.ts';

interface TailOptions extends ConnectionOptions {
  job?: string;
  target?: string;
  type?: string[];
  last: string;
  follow: boolean;
}

export function addEventCommands(program: Command, session: Session): void {
  const events = program.command('events').description('follow the event log, send events to jobs that wait for them');
  addSendCommand(events, session);
  withConnection(events.command('tail'))
    .description('print the last events, then each new one until Ctrl-C')
    .option('--job <id>', 'only events of this job')
    .option('--target <target>', 'only events of this target')
    .option('--type <type...>', 'only these types, e.g. job.failed')
    .option('--last <count>', 'how many earlier events', '10')
    .option('--no-follow', 'only the earlier ones')
    .action(async (options: TailOptions) => {
      const client = await connect(session, options);
      const { job, target: targetId, type } = options;
      const wanted = (event: { type: string }) => type === undefined || type.includes(event.type);
      const show = (event: Parameters<typeof eventText>[1]) =>
        session.terminal.out(`${session.json ? JSON.stringify(event) : eventText(session, event)}\n`);
      const signal = options.follow ? session.terminal.interrupted?.() : undefined;
      // Opened first, so that no event is missed between the list and the stream.
      const stream = client.events.stream({ job, targetId, signal });
      try {
        if (options.follow) await stream.next();
        const shown = new Set<string>();
        const earlier = await client.events.list({ jobId: job, targetId, type }).take(countOf(options.last, '--last'));
        for (const event of earlier.reverse()) {
          shown.add(event.id);
          show(event);
        }
        if (!options.follow) return;
        for await (const message of stream) {
          if (message.kind === 'reset') session.terminal.err(`some events were missed: ${message.reason}\n`);
          if (message.kind === 'event' && wanted(message.event) && !shown.has(message.event.id)) show(message.event);
        }
      } catch (error) {
        if (!signal?.aborted) throw error;
      } finally {
        await stream.return(undefined as never);
      }
    });
}

function addSendCommand(events: Command, session: Session): void {
  withConnection(events.command('send <name> [data]'))
    .description('send an event to the jobs that wait for it; the data is JSON, or @file')
    .option('--id <id>', 'your name for the event: with the same id it is received once')
    .action(async (name: string, data: string | undefined, { id, ...options }: ConnectionOptions & { id?: string }) => {
      const client = await connect(session, options);
      const receipt = await client.events.send(name, data === undefined ? undefined : readJson(data, 'data'), { id });
      session.print(receipt, `received ${receipt.id}`);
    });
}

export function addWorkerCommands(program: Command, session: Session): void {
  withConnection(program.command('workers'))
    .description('list the daemons: alive, draining, or lost within the last day (over HTTP: with an operator key)')
    .action(async (options: ConnectionOptions) => {
      const found = await (await connect(session, options, 'operator')).workers();
      const rows = found.map((worker) => [
        worker.id,
        worker.state,
        String(worker.running),
        worker.version,
        `${worker.host}:${worker.pid}`,
        age(worker.started_at),
        `${Math.round(worker.seconds_since_beat)}s`,
        worker.job_types.join(' '),
      ]);
      const headings = ['ID', 'STATE', 'RUNNING', 'VERSION', 'PROCESS', 'UP', 'BEAT', 'TYPES'];
      const table = fitTable(session.terminal.screen, headings, rows, (row, column) =>
        column !== 1
          ? undefined
          : found[row]?.state === 'alive'
            ? 'green'
            : found[row]?.state === 'lost'
              ? 'red'
              : 'yellow',
      );
      session.print(found, found.length === 0 ? 'no daemons' : table);
    });
}
