// Named parameters of statements.
import { describe, expect, it } from 'vitest';
import { quoteSchema } from '../../../server/database/identifiers.ts';
import { bindParameters, statement, statementVariants, tenant } from '../../../server/database/sql.ts';

const acme = quoteSchema('tenant_acme');

describe('a statement', () => {
  it('numbers each name once, in the order of first use', () => {
    const made = statement('select :b::text, :a, :b from t where x = :a');
    expect(made.text(acme)).toBe('select $1::text, $2, $1 from t where x = $2');
    expect(made.names).toEqual(['b', 'a']);
    expect(made.values({ a: 1, b: 2 })).toEqual([2, 1]);
  });

  it('leaves casts, strings, quoted names and comments as they are', () => {
    const text = `select a::text, ':a', 'it''s :a', "b:c", x[1:2] -- :a`;
    expect(statement(text).text(acme)).toBe(text);
    expect(statement(text).names).toEqual([]);
    expect(statement(`select (:a::jsonb -> 'b')::uuid`).text(acme)).toBe(`select ($1::jsonb -> 'b')::uuid`);
  });

  it('refuses a value without a placeholder, and a placeholder without a value', () => {
    const made = statement('select :a');
    expect(() => made.values({ a: 1, b: 2 })).toThrow('unknown SQL parameter :b');
    expect(() => made.values({})).toThrow('missing SQL parameter :a');
    expect(() => made.values({ a: undefined })).toThrow('missing SQL parameter :a');
    expect(made.values({ a: null, b: undefined })).toEqual([null]);
  });

  it('is bound without a schema where it is compiled at each call', () => {
    const text = 'update "leasehold".t set a = :a where id = :id and b = :a';
    expect(bindParameters(text, { id: 1, a: null })).toEqual({
      text: 'update "leasehold".t set a = $1 where id = $2 and b = $1',
      values: [null, 1],
    });
    expect(() => bindParameters(text, { id: 1 })).toThrow('missing SQL parameter :a');
    expect(() => bindParameters(text, { id: 1, a: 2, b: 3 })).toThrow('unknown SQL parameter :b');
  });

  it('is written over a placeholder for the schema of the tenant', () => {
    const made = statement(`select * from ${tenant}.jobs j join ${tenant}.leases l on l.id = j.lease_id`);
    expect(made.text(acme)).toBe('select * from "tenant_acme".jobs j join "tenant_acme".leases l on l.id = j.lease_id');
    expect(made.text(quoteSchema('tenant_b'))).toContain('"tenant_b".leases');
  });

  it('is compiled once per text', () => {
    expect(statement('select :same')).toBe(statement('select :same'));
    let renders = 0;
    const variants = statementVariants(({ all }: { all: boolean }) => {
      renders += 1;
      return all ? 'select 1' : 'select :id';
    });
    expect(variants({ all: false })).toBe(variants({ all: false }));
    expect(variants({ all: true }).names).toEqual([]);
    expect(renders).toBe(2);
  });

  it('has no empty lines for omitted fragments', () => {
    expect(statement('\n  select 1\n  \n  from t').text(acme)).toBe('  select 1\n  from t');
  });
});
