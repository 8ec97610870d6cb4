// The completion scripts in the shells themselves. bash is always there; zsh and fish are tried where they are installed.
import { spawnSync } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runCli } from '../../../server/cli/program.ts';
import { eventually } from '../../support/eventually.ts';
import { temporaryDirectory } from '../../support/temporary.ts';
import { hasTerminals, runOnTerminal } from '../../support/terminal/terminal.ts';

const isInstalled = (shell: string) => spawnSync(shell, ['--version']).status === 0;
const hasFish = isInstalled('fish');
const hasZsh = isInstalled('zsh') && hasTerminals;
const skipped = (isHere: boolean, what: string) => (isHere ? '' : ` (skipped: ${what} is not installed)`);

async function cli(...args: string[]): Promise<{ code: number; out: string }> {
  let out = '';
  const code = await runCli(args, { env: {}, out: (text) => void (out += text), err: () => undefined });
  return { code, out };
}

async function writeScript(shell: string, name: string): Promise<string> {
  const { code, out } = await cli('completion', shell);
  expect(code).toBe(0);
  const directory = await temporaryDirectory('completion');
  await writeFile(join(directory, name), out);
  return directory;
}

/** Runs a shell that must say nothing on stderr. With a socket as its input, as Node gives it by default, bash reads its settings. */
function shell(program: string, args: string[]): string[] {
  const { status, stdout, stderr } = spawnSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  return stdout.split('\n').filter(Boolean);
}

test('another shell is refused', async () => {
  expect((await cli('completion', 'tcsh')).code).toBe(2);
});

test('bash completes commands, subcommands and options', async () => {
  const file = join(await writeScript('bash', 'leasehold'), 'leasehold');
  const complete = (...typed: string[]) =>
    shell('bash', [
      '-euc',
      `source "$0"; COMP_WORDS=(leasehold "$@"); COMP_CWORD=$#; _leasehold; printf '%s\\n' "\${COMPREPLY[@]}"`,
      file,
      ...typed,
    ]);
  expect(complete('sched')).toEqual(['schedules']);
  expect(complete('jobs', 'l')).toEqual(['list', 'logs']);
  expect(complete('--json', 'targets', 'pa')).toEqual(['pause']);
  expect(complete('jobs', 'list', '--status', 'ERROR', '--ty')).toEqual(['--type']);
  expect(complete('jobs', 'show', '0197', '--t')).toEqual(['--tenant']);
  expect(complete('completion', '')).toEqual(expect.arrayContaining(['bash', 'zsh', 'fish']));
});

test.skipIf(!hasFish)(`fish completes with descriptions${skipped(hasFish, 'fish')}`, async () => {
  const file = join(await writeScript('fish', 'leasehold.fish'), 'leasehold.fish');
  shell('fish', ['--no-config', '--no-execute', file]);
  const complete = (line: string) =>
    shell('fish', ['--no-config', '-c', `source ${file}; complete -C'${line}'`]).map((found) => found.split('\t')[0]);
  expect(complete('leasehold jobs l')).toEqual(['list', 'logs']);
  expect(complete('leasehold jobs list l')).not.toContain('list');
  expect(complete('leasehold --json targets pa')).toEqual(['pause']);
  expect(complete('leasehold jobs show 0197 --t')).toEqual(['--tenant']);
});

describe.skipIf(!hasZsh)(`zsh${skipped(hasZsh, 'zsh, or Python for a terminal,')}`, () => {
  test.each([
    ['sourced', 'autoload -Uz compinit; compinit -u -D; source $ZDOTDIR/_leasehold'],
    ['found in fpath', 'fpath=($ZDOTDIR $fpath); autoload -Uz compinit; compinit -u -D'],
  ])('completes as a person types: the script is %s', async (_, load) => {
    const directory = await writeScript('zsh', '_leasehold');
    shell('zsh', ['-fn', join(directory, '_leasehold')]);
    await writeFile(join(directory, '.zshrc'), `${load}\nsetopt no_list_beep\nPS1='ready> '\n`);
    const zsh = runOnTerminal(['zsh', '-d', '-i'], { cwd: directory, env: { ZDOTDIR: directory } });
    await eventually(() => expect(zsh.shown()).toContain('ready> '));
    zsh.type('leasehold jobs l\t');
    await eventually(() => expect(zsh.shown()).toContain('logs  -- what the handler of a job logged'));
    zsh.type('\u0015leasehold --json targets pa\t');
    await eventually(() => expect(zsh.shown()).toContain('targets pause'));
    expect(zsh.shown()).not.toMatch(/not found|error/);
    zsh.type('\u0015exit\n');
    expect(await zsh.exitCode).toBe(0);
  });
});
