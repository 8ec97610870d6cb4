// The table is the only list of a job's columns: a new one reaches the insert, the claim and the readers by itself.
import { expect, test } from 'vitest';
import { quoteSchema } from '../../../../server/database/identifiers.ts';
import { defaultedColumns, returningClaimed } from '../../../../server/jobs/claim/claimed-job.ts';
import { insertedColumns, insertStatement } from '../../../../server/jobs/enqueue/insert-jobs.ts';
import {
  blankJob,
  engineColumns,
  type JobColumn,
  jobColumns,
  requestColumns,
  sqlName,
  sqlType,
} from '../../../../server/jobs/model/columns.ts';
import { summaryColumns } from '../../../../server/jobs/read/read-jobs.ts';

const words = (text: string) => new Set(text.match(/\w+/g));

test('every column is set by requests or owned by the engine, and none is both', () => {
  expect([...requestColumns, ...engineColumns].sort()).toEqual([...jobColumns].sort());
});

test('the insert takes and stores every column that requests set', () => {
  const text = insertStatement({ starts: false, lanes: 'placed' }).text(quoteSchema('tenant_acme'));
  const [, input, stored, selected] =
    /as g\(([\s\S]*?)\)\n[\s\S]*insert into "tenant_acme"\.jobs \(([\s\S]*?)\)\s+select([\s\S]*?)from given/.exec(
      text,
    ) ?? [];
  for (const column of requestColumns) {
    expect(input).toContain(`"${column}" ${sqlType(column)}`);
    expect(words(stored as string)).toContain(sqlName(column));
    expect(selected).toContain(`"${column}"`);
  }
});

test('the insert stores each column once', () => {
  expect(insertedColumns.length).toBe(new Set(insertedColumns).size);
});

test('a claim returns every column that requests set, except those for readers only', () => {
  const readers: JobColumn[] = ['remote', 'webhookUrl', 'clientRequestId', 'requestHash', 'scheduleId', 'limitKeys'];
  const brought = words(returningClaimed);
  for (const column of requestColumns)
    expect([column, brought.has(sqlName(column))]).toEqual([column, !readers.includes(column)]);
  // Only columns with a default may be left out of a row.
  for (const column of defaultedColumns) expect([column, blankJob[column]]).not.toEqual([column, undefined]);
});

test('lists read every column but the documents and the hash of the request', () => {
  const kept = ['payload', 'result', 'checkpoint', 'requestHash'];
  const shown = jobColumns.filter((column) => !kept.includes(column));
  expect(words(summaryColumns)).toEqual(new Set(['j', 'as', ...shown, ...shown.map(sqlName)]));
});

test('a blank job has every column, with the default of the table where there is one', () => {
  expect(Object.keys(blankJob).sort()).toEqual([...jobColumns, 'leaseExpiresAt', 'heartbeatAt'].sort());
  expect(blankJob).toMatchObject({
    queue: 'default',
    maxAttempts: 1,
    costUnits: 1,
    onError: 'block',
    remote: false,
    tokensUsed: 0,
    laneSeq: '0',
    targetId: null,
    hold: null,
  });
});
