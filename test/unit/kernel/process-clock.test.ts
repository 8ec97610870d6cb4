// Only the database's clock decides. This is the list of all places that read the wall clock of their process: for a time
// that nothing is compared with, or on the machine of a person who looks at it.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../server/kernel/environment.ts';

const allowed: Record<string, string> = {
  'database/connections/connections.ts': 'before the first connection, for a log line or a ping',
  'database/connections/session-limits.ts': 'if the server gives no time with a new connection',
  'embedded-postgres/cluster-directory.ts': 'the name of a directory that is moved away',
  'kernel/ids.ts': 'the upper bits of an id, of which no more than an approximate order is expected',
};
/** They run beside a person or a client, not in the daemon; `testing` replaces a database. */
const outside = /^(cli|client|dashboard|remote-worker|testing)\//;

test('the daemon compares no time of the database with the wall clock of its process', () => {
  const root = join(packageRoot(), 'server');
  const found = readdirSync(root, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts') && !outside.test(name))
    .filter((name) => /\bDate\.now\b|\bnew Date\(\)/.test(readFileSync(join(root, name), 'utf8')))
    .sort();
  expect(found).toEqual(Object.keys(allowed).sort());
});
