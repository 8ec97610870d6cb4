// leasehold top: shows the lanes, rates and holds of a tenant, redrawn every second until Ctrl-C.
import type { Command } from 'commander';
import type { LeaseholdClient } from '../../client/client.ts';
import type { Counts, HoldCount, Lane } from '../../client/generated/api-types.ts';
import { type ConnectionOptions, connect, withConnection } from '../connection.ts';
import { age, bar, colourOf, fitTable, paint } from '../output.ts';
import type { Screen, Session } from '../session.ts';
import { countOf } from './job-reads.ts';
import { waitText } from './targets.ts';

interface View {
  at: number;
  counts: Counts;
  holds: HoldCount;
  lanes: Lane[];
}

// Uses the alternate screen of the terminal, without a cursor and with long lines cut, and restores everything
// afterwards.
const enter = '\u001b[?1049h\u001b[?25l\u001b[?7l';
const leave = '\u001b[?7h\u001b[?25h\u001b[?1049l';

export function addTopCommand(program: Command, session: Session): void {
  withConnection(program.command('top'))
    .description('a live view of lanes, rates and holds; without a terminal, or with --json, one view')
    .option('--interval <seconds>', 'time between two views', '1')
    .action(async (options: ConnectionOptions & { interval: string }) => {
      const client = await connect(session, options);
      const { screen } = session.terminal;
      if (screen === undefined || session.json) {
        const view = await readView(client, 50);
        return session.print(view, draw(view, undefined, { columns: () => 200, rows: () => 60, colours: false }));
      }
      await drawUntilInterrupted(session, client, screen, countOf(options.interval, '--interval') * 1000);
    });
}

async function drawUntilInterrupted(session: Session, client: LeaseholdClient, screen: Screen, everyMs: number) {
  const signal = session.terminal.interrupted?.() ?? new AbortController().signal;
  const { out } = session.terminal;
  out(enter);
  try {
    let before: View | undefined;
    while (!signal.aborted) {
      const view = await readView(client, Math.max(5, screen.rows() - 6), signal);
      out(`\u001b[H${draw(view, before, screen).replaceAll('\n', '\u001b[K\n')}\u001b[J`);
      before = view;
      await untilNext(everyMs, signal);
    }
  } catch (error) {
    // Ctrl-C ends a request that has no answer yet: the terminal is restored at once.
    if (!signal.aborted) throw error;
  } finally {
    out(leave);
  }
}

function untilNext(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener('abort', end);
  });
}

async function readView(client: LeaseholdClient, rows: number, signal?: AbortSignal): Promise<View> {
  const limit = Math.min(100, rows);
  const [counts, holds, held, running] = await Promise.all([
    client.counts({ signal }),
    client.holdCount({ signal }),
    client.targets.lanes({ show: 'held', limit, signal }).take(rows),
    client.targets.lanes({ show: 'running', limit, signal }).take(rows),
  ]);
  // Lanes that need a person come first.
  const lanes = [...new Map([...held, ...running].map((lane) => [lane.id, lane])).values()].slice(0, rows);
  return { at: Date.now(), counts, holds, lanes };
}

function draw(view: View, before: View | undefined, screen: Screen): string {
  const { counts } = view.counts;
  const held = view.holds.paused + view.holds.error;
  const { questions } = view.holds;
  const asked = questions === 0 ? '' : `  ${paint(screen, 'yellow', `${questions} to answer`)}`;
  const shown = (['QUEUED', 'RUNNING', 'PENDING', 'WAITING', 'PAUSED', 'ERROR', 'SUCCESS'] as const).map(
    (status) => `${paint(screen, colourOf(status), status)} ${counts[status]}`,
  );
  const lines = [
    `Leasehold  ${new Date(view.at).toISOString().slice(11, 19)}  finished ${rateOf(view, before)}/s  ${paint(screen, held > 0 ? 'red' : 'green', `${held} held`)}${asked}`,
    shown.join('  '),
    '',
    view.lanes.length === 0 ? 'no lane runs or is held' : laneTable(view.lanes, screen),
  ];
  return `${lines.join('\n')}\n`;
}

function rateOf(view: View, before: View | undefined): string {
  if (before === undefined) return '–';
  const finished = ({ counts: { counts } }: View) => counts.SUCCESS + counts.PARTIAL + counts.CANCELED;
  return (Math.max(0, finished(view) - finished(before)) / ((view.at - before.at) / 1000)).toFixed(1);
}

function laneTable(lanes: readonly Lane[], screen: Screen): string {
  const rows = lanes.map(({ id, head, hold, waiting, waiting_exact, oldest_waiting_at }) => [
    id,
    head?.status ?? (hold === null ? '' : 'paused'),
    head?.type ?? '',
    head?.status === 'RUNNING' && head.progress !== null ? bar(head.progress / 100, 10) : '',
    `${waiting}${waiting_exact ? '' : '+'}`,
    age(oldest_waiting_at),
    hold?.detail ?? waitText(head) ?? head?.progress_message ?? '',
  ]);
  const headings = ['TARGET', 'HEAD', 'TYPE', 'PROGRESS', 'WAIT', 'OLDEST', 'WHY'];
  return fitTable(screen, headings, rows, (row, column) =>
    column === 1 ? colourOf(lanes[row]?.head?.status ?? '') : undefined,
  );
}
