import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { jobErrors } from '../../../server/jobs/model/job-errors.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';

it('the table of job error codes in docs/handlers.md is the catalogue', () => {
  const page = readFileSync(join(packageRoot(), 'docs/handlers.md'), 'utf8');
  const table = /<!-- job errors[^>]*-->\n([\s\S]*?)\n<!-- \/job errors -->/.exec(page)?.[1] ?? '';
  const rows = Object.entries(jobErrors).map(([code, when]) => `| \`${code}\` | ${when} |`);
  expect(table.split('\n').slice(2)).toEqual(rows);
});
