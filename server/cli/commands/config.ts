// leasehold config: every setting with its value, default and meaning. Secrets are hidden.
import type { Command } from 'commander';
import { describeSettings } from '../../kernel/config.ts';
import type { Session } from '../session.ts';
import { table } from '../table.ts';

export function addConfigCommand(program: Command, session: Session): void {
  program
    .command('config')
    .description('print every setting: its value, its default, what is allowed and what it does')
    .action(() => {
      const values = session.config as unknown as Record<string, unknown>;
      const settings = describeSettings().map((setting) => ({
        ...setting,
        value: shown(setting.name, String(values[camel(setting.name)])),
        set: (session.terminal.env[setting.name] ?? '').trim() !== '',
      }));
      session.print(
        settings,
        table(
          ['SETTING', 'VALUE', 'DEFAULT', 'MEANING'],
          settings.map((s) => [s.name, s.value || '(empty)', s.set ? s.default || '(empty)' : '', s.doc]),
        ),
      );
    });
}

function shown(name: string, value: string): string {
  if (value !== '' && /KEY|SECRET/.test(name)) return '(hidden)';
  if (!/URL$/.test(name) || !URL.canParse(value)) return value;
  const url = new URL(value);
  if (url.password !== '') url.password = '***';
  return url.href;
}

function camel(name: string): string {
  return name.toLowerCase().replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}
