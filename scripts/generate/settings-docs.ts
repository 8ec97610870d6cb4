// The text of .env.example and docs/configuration.md: every setting with its default and its meaning.
import { describeSettings } from '../../server/kernel/config.ts';

export function envExample(): string {
  const blocks = describeSettings().map((setting) => {
    const allowed = setting.allowed === 'any text' ? '' : `# Allowed: ${setting.allowed}.\n`;
    return `# ${setting.doc}\n${allowed}# ${setting.name}=${setting.default}\n`;
  });
  const head = '# Every setting of Leasehold with its default. Written by npm run env:example; do not edit.\n';
  return [head, ...blocks].join('\n');
}

/** The text of docs/configuration.md. */
export function configurationDoc(): string {
  const rows = describeSettings().map(({ name, default: value, allowed, doc }) => {
    const shown = value === '' ? 'empty' : `\`${value}\``;
    return `| \`${name}\` | ${shown} | ${allowed} | ${doc} |`;
  });
  return `# Configuration

<!-- Written by npm run env:example; do not edit. -->

Every setting is an environment variable. A value that is not allowed stops the start with the
setting's name, its value and what is allowed. \`npx leasehold config\` prints the values in force.
What concerns one tenant only (concurrency, capacity, retention, webhooks…) is a setting of the tenant:
see [the HTTP API](http-api.md#tenants).

| setting | default | allowed | meaning |
|---|---|---|---|
${rows.join('\n')}
`;
}
