// leasehold doctor: checks the settings and the database of a daemon, and suggests remedies for problems.
import type { Command } from 'commander';
import { problem } from '../../kernel/errors.ts';
import { paint } from '../output.ts';
import type { Session } from '../session.ts';
import { type Check, checkDatabase } from './database-checks.ts';

const marks = { ok: 'ok', warning: 'warning', failed: 'FAILED' } as const;
const colours = { ok: 'green', warning: 'yellow', failed: 'red' } as const;

export function addDoctorCommand(program: Command, session: Session): void {
  program
    .command('doctor')
    .description('check the settings and the database, and say what to do about problems; exits with 1 if one fails')
    .action(async () => {
      const checks: Check[] = [];
      for await (const check of allChecks(session)) {
        checks.push(check);
        if (!session.json) session.terminal.out(`${lineOf(session, check)}\n`);
      }
      const failed = checks.filter(({ state }) => state === 'failed').length;
      if (session.json) session.print({ ok: failed === 0, checks }, '');
      if (failed > 0) throw problem('CONFLICT', `${failed} of ${checks.length} checks failed`);
    });
}

async function* allChecks(session: Session): AsyncGenerator<Check> {
  const { config } = session;
  yield { name: 'settings', state: 'ok', found: 'all settings are valid' };
  yield* checkDatabase(session, config);
}

function lineOf(session: Session, { name, state, found, advice }: Check): string {
  const mark = paint(session.terminal.screen, colours[state], marks[state].padEnd(7));
  const line = `${mark}  ${name.padEnd(12)}  ${found}`;
  return advice === undefined ? line : `${line}\n${' '.repeat(9)}${advice}`;
}
