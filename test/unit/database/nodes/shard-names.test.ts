import { describe, expect, test } from 'vitest';
import { quoteSchema } from '../../../../server/database/identifiers.ts';
import { tenantOf } from '../../../../server/database/nodes/placements.ts';
import { toShardNames, withNodeNumbers } from '../../../../server/database/nodes/shard-names.ts';
import { insertEvents } from '../../../../server/events/log/record.ts';

const schema = quoteSchema('tenant_acme');
const shards = new Map([
  ['jobs', '102008'],
  ['events', '102009'],
  ['log_epochs', '102010'],
]);
const rename = (text: string) => toShardNames(text, schema, shards);

describe('names of shards', () => {
  test.each([
    ['select id from "tenant_acme".jobs j', 'select id from "tenant_acme"."jobs_102008" j'],
    ['select id from "tenant_acme"."jobs" as j', 'select id from "tenant_acme"."jobs_102008" as j'],
    ['update "tenant_acme".jobs set a = jobs.b', 'update "tenant_acme"."jobs_102008" as "jobs" set a = jobs.b'],
    [
      '(select 1 from "tenant_acme".jobs where jobs.id = $1)',
      '(select 1 from "tenant_acme"."jobs_102008" as "jobs" where jobs.id = $1)',
    ],
    ['delete from "tenant_acme".jobs', 'delete from "tenant_acme"."jobs_102008" as "jobs"'],
    [
      'select "tenant_acme"."jobs"."id" from "tenant_acme"."jobs"',
      'select "jobs"."id" from "tenant_acme"."jobs_102008" as "jobs"',
    ],
    ['select "tenant_acme".assert_lease($1, $2)', 'select "tenant_acme".assert_lease($1, $2)'],
    [
      'insert into "tenant_acme".jobs (id) values ($1) on conflict (id) do update set a = jobs.a',
      'insert into "tenant_acme"."jobs_102008" as "jobs" (id) values ($1) on conflict (id) do update set a = jobs.a',
    ],
  ])('%s', (text, renamed) => {
    expect(rename(text)).toBe(renamed);
  });

  test('events get their number from the sequence of the node, above those of earlier epochs', () => {
    const renamed = rename(`with c as (insert into "tenant_acme".events (xid, data)
      select log.xid, jsonb_build_object('a', (select 1)) from log
      union all
      select log.xid, null from log) select 1`);
    const [, ...numbers] =
      renamed?.split('nextval(\'"tenant_acme".events_seq_seq\') & 281474976710655), log.xid') ?? [];
    expect(renamed).toContain('insert into "tenant_acme"."events_102009" as "events" (seq, xid, data)');
    expect(numbers).toHaveLength(2);
    expect(renamed).toContain('(select 1)) from log');
    expect(renamed).toMatch(/\) select 1$/);
  });

  test('the number is computed from the epoch that the insert reads with its transaction id', () => {
    const two = ['one', 'two'].map((type) => ({ source: 'c', type: `'${type}'`, actor: ':actor' }));
    const renamed = rename(`with c as (select 1), recorded as (${insertEvents(schema, ...two)}) select 1`) ?? '';
    expect(renamed.split('log_epochs')).toHaveLength(2);
    expect(renamed.split(' as first_number, case when')).toHaveLength(2);
    expect(renamed.split('select log.first_number + (nextval')).toHaveLength(3);
    expect(renamed).not.toContain('overriding');
  });

  test('through the coordinator, events name the number of the node', () => {
    const text = `with recorded as (${insertEvents(schema, { source: 'c', type: `'one'`, actor: ':actor' })}) select 1`;
    const sent = withNodeNumbers(text, schema);
    expect(sent).toMatch(/\(seq, xid, [^)]*\) overriding system value\s+select \* from \(\s+select log\.first_number/);
    expect(sent).toMatch(/as numbered\) select 1$/);
    expect(sent).toContain(`nextval('"tenant_acme".events_seq_seq')`);
    expect(withNodeNumbers('select 1 from "tenant_acme".events', schema)).toBe('select 1 from "tenant_acme".events');
  });

  test('events of VALUES get their number in the same way', () => {
    const renamed = rename(`insert into "tenant_acme".events (xid, data) values ($1, lower('A')), ($2, null)`);
    expect(renamed?.split('& 281474976710655), $')).toHaveLength(3);
    expect(renamed).toMatch(/281474976710655\), \$2, null\)$/);
  });

  test('a statement that sets the number itself keeps it', () => {
    const given = 'insert into "tenant_acme".events (xid, seq, data) values ($1, $2, null)';
    expect(rename(given)).toBe(given.replace('.events', '."events_102009" as "events"'));
  });

  test('a statement over a table without a shard is not rewritten', () => {
    expect(rename('select 1 from "tenant_acme".jobs, "tenant_acme".newer')).toBeUndefined();
  });
});

test.each([
  ['select 1 from "tenant_acme".jobs', '"tenant_acme"'],
  ['with a as (select 1) update "tenant_acme".jobs set x = 1', '"tenant_acme"'],
  ['create table "tenant_acme".jobs (id uuid)', undefined],
  ['select 1 from "leasehold".tenants', undefined],
])('the tenant of: %s', (text, expected) => {
  expect(tenantOf(text)).toBe(expected);
});
