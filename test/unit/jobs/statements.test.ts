// The text that Postgres gets for each hot statement, kept under test/snapshots. After an intended change:
// `npx vitest run test/unit/jobs/statements.test.ts -u`, and read the difference.
import { expect, test } from 'vitest';
import { quoteSchema } from '../../../server/database/identifiers.ts';
import type { Statement } from '../../../server/database/sql.ts';
import { saveStatement } from '../../../server/jobs/attempt/save-steps.ts';
import { claimStatement } from '../../../server/jobs/claim/claim.ts';
import { renewal } from '../../../server/jobs/claim/lease.ts';
import { insertStatement } from '../../../server/jobs/enqueue/insert-jobs.ts';
import { type FinishVariant, finishStatement } from '../../../server/jobs/finish/finish-statement.ts';
import { endStatement, expiredLeases, ownedJobs } from '../../../server/jobs/finish/recover.ts';
import type { WrittenEnd } from '../../../server/jobs/finish/stop-decisions.ts';

const finish = (end: WrittenEnd, variant: Partial<FinishVariant> = {}) =>
  finishStatement({
    end,
    oneLease: true,
    hasEntries: true,
    hasEventData: true,
    withAsked: false,
    lanes: 'none',
    ...variant,
  });

const statements: Record<string, Statement> = {
  insert: insertStatement({ starts: false, lanes: 'placed' }),
  'insert-and-start': insertStatement({ starts: true, lanes: 'placed' }),
  'insert-into-lanes': insertStatement({ starts: false, lanes: 'joined' }),
  'insert-into-lanes-and-start': insertStatement({ starts: true, lanes: 'joined' }),
  'insert-outside-lanes': insertStatement({ starts: false, lanes: 'outside' }),
  'insert-waiting': insertStatement({ starts: false, lanes: 'placed', waits: true }),
  claim: claimStatement({ by: 'daemon' }),
  'claim-chosen': claimStatement({ by: 'choice' }),
  'claim-remote': claimStatement({ by: 'remoteWorker' }),
  renew: renewal,
  'finish-complete-without-results': finish('complete', { hasEntries: false, hasEventData: false }),
  'finish-complete-and-claim-next': finish('complete', { oneLease: false, hasEventData: false, lanes: 'claim' }),
  'finish-complete-partly': finish('completePartly'),
  'finish-retry': finish('retry'),
  'finish-fail-and-promote': finish('fail', { lanes: 'promote' }),
  'finish-stop-paused': finish('stopPaused'),
  'finish-drained': finish('drained'),
  'finish-stop-canceled': finish('stopCanceled', { lanes: 'promote' }),
  'finish-requeue': finish('requeue'),
  'finish-suspend': finish('suspend'),
  'finish-suspend-aside': finish('suspendAside', { lanes: 'promote' }),
  'finish-complete-with-questions': finish('complete', { withAsked: true }),
  'finish-recover': finish('recover'),
  'finish-recover-later': finish('recoverLater'),
  'save-steps': saveStatement({ skipLocked: false, hasProgress: false }),
  'save-steps-of-several-jobs': saveStatement({ skipLocked: true, hasProgress: false }),
  'save-phases-of-several-jobs': saveStatement({ skipLocked: true, hasProgress: true }),
  'recover-expired-leases': expiredLeases,
  'recover-owned-jobs': ownedJobs,
  'recover-end-lease': endStatement,
};

test.each(Object.entries(statements))('%s', async (name, statement) => {
  const names = statement.names.map((parameter, n) => `-- $${n + 1}: ${parameter}`);
  const text = [...names, ...indented(statement.text(quoteSchema('tenant_acme'))), ''].join('\n');
  await expect(text).toMatchFileSnapshot(`../../snapshots/${name}.sql`);
});

const clause =
  /^((with|select|from|where|group by|order by|limit|for|returning|insert|update|set|on conflict|union|cross join|join)\b|\)|\($|\w+ as (materialized )?\()/;
const maxWidth = 120;

/** Indented by the depth of parentheses and by clause: fragments keep the indentation of the file that they come from. */
function indented(text: string): string[] {
  let depth = 0;
  return text.split('\n').flatMap((line) => {
    const content = line.trim();
    const closes = /^\)+/.exec(content)?.[0].length ?? 0;
    const level = Math.max(0, depth - closes) + (clause.test(content) ? 0 : 1);
    depth += (content.match(/\(/g)?.length ?? 0) - (content.match(/\)/g)?.length ?? 0);
    return wrapped(content, '  '.repeat(level));
  });
}

/** Long lists of columns go on in further lines. */
function wrapped(content: string, indent: string): string[] {
  const lines: string[] = [];
  let line = indent;
  for (const item of content.split(/(?<=,) /)) {
    if (line.trim() !== '' && line.length + item.length > maxWidth) {
      lines.push(line.trimEnd());
      line = `${indent}  `;
    }
    line += `${item} `;
  }
  return [...lines, line.trimEnd()];
}
