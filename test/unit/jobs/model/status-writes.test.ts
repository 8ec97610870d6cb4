// Nothing but the transition table writes a job's status: this reads the SQL of the whole server.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { packageRoot } from '../../../../server/kernel/package-root.ts';

const root = join(packageRoot(), 'server');
const files = readdirSync(root, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts'));

/** The assignments of every `update ….jobs set …`. */
function jobUpdates(source: string): string[] {
  const updates = source.matchAll(
    /update \$\{[^}]*\}\.jobs(?: (?:as )?\w+)?\s+set\s([\s\S]*?)(?:\bwhere\b|\bfrom\b|\breturning\b|`,|`;)/gi,
  );
  return [...updates].map((match) => match[1] as string);
}

test('every update of a job that changes its status takes it from become()', () => {
  let updates = 0;
  let transitions = 0;
  for (const file of files) {
    for (const assignments of jobUpdates(readFileSync(join(root, file), 'utf8'))) {
      updates += 1;
      if (assignments.includes('${become(')) transitions += 1;
      const others = assignments.replaceAll(/\$\{become\([^)]*\)\}/g, '');
      expect([file, others.match(/(^|[\s,])status\s*=/)]).toEqual([file, null]);
    }
  }
  // The reader above must have found what there is to find.
  expect(updates).toBeGreaterThan(10);
  expect(transitions).toBeGreaterThan(6);
});

test('one statement inserts jobs, and enqueue alone uses it', () => {
  const inserting = files.filter((file) =>
    /insert into \$\{[^}]*\}\.jobs\b/i.test(readFileSync(join(root, file), 'utf8')),
  );
  expect(inserting).toEqual([join('jobs', 'enqueue', 'insert-jobs.ts')]);
  const using = files.filter((file) => /\binsertJobs\(/.test(readFileSync(join(root, file), 'utf8')));
  expect(using.sort()).toEqual([join('jobs', 'enqueue', 'enqueue.ts'), join('jobs', 'enqueue', 'insert-jobs.ts')]);
});

test('only become() and the phases make an assignment of a status', () => {
  const makers = files.filter((file) => /`status = '\$\{/.test(readFileSync(join(root, file), 'utf8')));
  // list.ts and status.ts compare with it; states.ts has become().
  const allowed = [
    join('jobs', 'model', 'states.ts'),
    join('jobs', 'read', 'list-jobs.ts'),
    join('scheduler', 'status.ts'),
  ];
  expect(makers).toContain(join('jobs', 'model', 'states.ts'));
  expect(makers.filter((file) => !allowed.includes(file))).toEqual([]);
});
