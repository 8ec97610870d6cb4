// leasehold completion: a script for the shell that completes commands and options, made from the commands themselves.
import type { Command } from 'commander';
import { problem } from '../../kernel/errors.ts';
import type { Session } from '../session.ts';

export function addCompletionCommand(program: Command, session: Session): void {
  program
    .command('completion <shell>')
    .description('print a script that completes commands: bash, zsh or fish')
    .action((shell: string) => {
      const words = wordsOf(program);
      const scripts: Record<string, () => string> = {
        bash: () => bash(words),
        zsh: () => zsh(words),
        fish: () => fish(words),
      };
      const script = scripts[shell]?.();
      if (script === undefined) throw problem('INVALID_FIELD', `the shell is bash, zsh or fish, not ${shell}`);
      session.terminal.out(script);
    });
}

/** By the words before: `''` → the commands, `jobs` → its subcommands, `jobs list` → its options. */
type Words = Map<string, string[]>;

function wordsOf(command: Command, path: readonly string[] = [], words: Words = new Map()): Words {
  const options = command.options.map(({ long }) => long ?? '').filter((name) => name !== '');
  words.set(path.join(' '), [...command.commands.map((child) => child.name()), ...options, '--help']);
  for (const child of command.commands) wordsOf(child, [...path, child.name()], words);
  return words;
}

function cases(words: Words): string {
  return [...words].map(([path, next]) => `    "${path}") words="${next.join(' ')}" ;;`).join('\n');
}

function bash(words: Words): string {
  return `_leasehold() {
  local path="" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "\${COMP_WORDS[i]}" in
      -*) break ;;
      *) [ "\${#path}" -eq 0 ] && path="\${COMP_WORDS[i]}" || path="$path \${COMP_WORDS[i]}" ;;
    esac
  done
  while :; do
    case "$path" in
${cases(words)}
    esac
    { [ -n "$words" ] || [ -z "$path" ]; } && break
    case "$path" in *" "*) path="\${path% *}" ;; *) path="" ;; esac
  done
  COMPREPLY=($(compgen -W "$words" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -F _leasehold leasehold
`;
}

function zsh(words: Words): string {
  return `autoload -U +X bashcompinit && bashcompinit\n${bash(words)}`;
}

function fish(words: Words): string {
  const lines = [...words].flatMap(([path, next]) => {
    const steps = path === '' ? [] : path.split(' ');
    const seen = steps.map((step) => `__fish_seen_subcommand_from ${step}`).join('; and ');
    const condition = steps.length === 0 ? '__fish_use_subcommand' : seen;
    return next.map((word) =>
      word.startsWith('--')
        ? `complete -c leasehold -f -n '${condition}' -l ${word.slice(2)}`
        : `complete -c leasehold -f -n '${condition}' -a ${word}`,
    );
  });
  return `${lines.join('\n')}\n`;
}
