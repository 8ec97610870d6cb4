// The text of .env.example: every setting, its default and what it means.
import { describeSettings } from './config.ts';

export function envExample(): string {
  const blocks = describeSettings().map((setting) => {
    const allowed = setting.allowed === 'any text' ? '' : `# Allowed: ${setting.allowed}.\n`;
    return `# ${setting.doc}\n${allowed}# ${setting.name}=${setting.default}\n`;
  });
  const head = '# Every setting of Leasehold with its default. Written by npm run env:example; do not edit.\n';
  return [head, ...blocks].join('\n');
}
