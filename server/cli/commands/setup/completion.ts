// leasehold completion: prints a shell script that completes commands and options, generated from the commands.
import { Argument, type Command } from 'commander';
import type { Session } from '../../session.ts';

const scripts = { bash, zsh, fish };
type Shell = keyof typeof scripts;

export function addCompletionCommand(program: Command, session: Session): void {
  program
    .command('completion')
    .addArgument(new Argument('<shell>', 'the shell that reads the script').choices(Object.keys(scripts)))
    .description('print a script that completes commands: bash, zsh or fish')
    .action((shell: Shell) => session.terminal.out(scripts[shell](candidatesOf(program))));
}

interface Candidate {
  text: string;
  description: string;
}

/** The words by the commands before them: `''` → the commands, `jobs` → its subcommands, `jobs list` → its options. */
type Candidates = Map<string, Candidate[]>;

function candidatesOf(command: Command, path: readonly string[] = [], found: Candidates = new Map()): Candidates {
  found.set(path.join(' '), [
    ...command.commands.map((child) => ({ text: child.name(), description: child.description() })),
    ...command.registeredArguments.flatMap(({ argChoices = [], description }) =>
      argChoices.map((text) => ({ text, description })),
    ),
    ...command.options.flatMap(({ long, description }) => (long ? [{ text: long, description }] : [])),
    { text: '--help', description: 'show the usage' },
  ]);
  for (const child of command.commands) candidatesOf(child, [...path, child.name()], found);
  return found;
}

// Each script collects the commands before the cursor, skips options, and removes words from the end, such as the id of
// a job or the value of an option, until a command remains.

function bash(candidates: Candidates): string {
  const cases = [...candidates].map(([command, next]) => {
    const texts = next.map(({ text }) => text).join(' ');
    return `      ${quote(command)}) candidates=${quote(texts)} ;;`;
  });
  return `_leasehold() {
  local command="" candidates="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "\${COMP_WORDS[i]}" in
      -*) ;;
      *) command="\${command:+$command }\${COMP_WORDS[i]}" ;;
    esac
  done
  while :; do
    case "$command" in
${cases.join('\n')}
    esac
    [ -z "$candidates" ] || break
    case "$command" in *" "*) command="\${command% *}" ;; *) command="" ;; esac
  done
  COMPREPLY=($(compgen -W "$candidates" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -F _leasehold leasehold
`;
}

/** Used as a file `_leasehold` in `fpath`, or sourced after `compinit`. */
function zsh(candidates: Candidates): string {
  const cases = [...candidates].map(([command, next]) => {
    const described = next.map(({ text, description }) => quote(`${text}:${description}`)).join(' ');
    return `      ${quote(command)}) candidates=(${described}) ;;`;
  });
  return `#compdef leasehold
_leasehold() {
  local typed="" i
  local -a candidates
  for ((i = 2; i < CURRENT; i++)); do
    [[ "\${words[i]}" == -* ]] || typed="\${typed:+$typed }\${words[i]}"
  done
  while :; do
    case "$typed" in
${cases.join('\n')}
    esac
    (( \${#candidates} == 0 )) || break
    if [[ "$typed" == *" "* ]]; then typed="\${typed% *}"; else typed=""; fi
  done
  _describe -t commands leasehold candidates
}
if [ "\${funcstack[1]}" = "_leasehold" ]; then _leasehold "$@"; else compdef _leasehold leasehold; fi
`;
}

function fish(candidates: Candidates): string {
  const cases = [...candidates].map(([command, next]) => {
    const described = next.map(({ text, description }) => quote(`${text}\t${description}`)).join(' ');
    return `      case ${quote(command)}\n        printf '%s\\n' ${described}\n        return`;
  });
  return `function __leasehold_candidates
  set -l typed (string match -v -- '-*' (commandline -opc)[2..-1])
  while true
    switch "$typed"
${cases.join('\n')}
    end
    set -e typed[-1]
  end
end
complete -c leasehold -f -a '(__leasehold_candidates)'
`;
}

/** For all three shells; descriptions have no backslashes. */
function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
