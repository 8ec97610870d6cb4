import { describe, expect, test } from 'vitest';
import { Fatal } from '../../../server/durable/handler-errors.ts';
import { toJobError } from '../../../server/durable/job-error.ts';
import { findJsonViolation } from '../../../server/kernel/json/json-violations.ts';
import { receiveError, sendError } from '../../../server/worker/threads/thread-messages.ts';

class PaymentRefused extends Error {}

describe('an error keeps', () => {
  test('its name and stack', () => {
    const error = toJobError(new PaymentRefused('card expired'));
    expect(error).toMatchObject({ code: 'HANDLER_ERROR', message: 'card expired', name: 'PaymentRefused' });
    expect(error.stack).toMatch(/^Error: card expired\n\s+at .*job-error\.test\.ts:\d+:\d+/);
  });

  test('the chain of its causes, up to a limit', () => {
    const root = Object.assign(new Error('refused'), { code: 'ECONNREFUSED' });
    const error = toJobError(new Error('outer', { cause: new TypeError('fetch failed', { cause: root }) }));
    expect(error.cause).toMatchObject({ name: 'TypeError', message: 'fetch failed' });
    expect(error.cause?.cause).toMatchObject({ name: 'Error', message: 'refused', code: 'ECONNREFUSED' });
    expect(error.cause?.stack).toContain('job-error.test.ts');
    expect(toJobError(new Error('x', { cause: 'a text' })).cause).toEqual({ message: 'a text' });
  });

  test('the errors of an AggregateError', () => {
    const error = toJobError(new AggregateError([new Error('one'), 'two'], 'all failed'));
    expect(error.errors).toMatchObject([{ message: 'one' }, { message: 'two' }]);
  });

  test('all of it when it leaves a thread', () => {
    const thrown = new Fatal('no', { code: 'REFUSED', details: { a: 1 }, cause: new RangeError('too far') });
    expect(toJobError(receiveError(structuredClone(sendError(thrown))))).toEqual(toJobError(thrown));
  });
});

describe('any thrown value can be stored, within bounds', () => {
  const circular = new Error('circular');
  circular.cause = circular;
  const deep = Array.from({ length: 100 }).reduce<Error>(
    (cause, _, i) => new Error(`${i}`, { cause }),
    new Error('root'),
  );
  const nul = Object.assign(new Error('a\u0000b \ud800'), { name: 'N\u0000', stack: 'at \u0000 \udfff' });
  const long = new Error('ü"\n'.repeat(100_000), { cause: new Error('\u0001'.repeat(100_000)) });
  const hostile = new Proxy(new Error('hostile'), {
    get: (target, key) => {
      if (key === 'stack' || key === 'cause') throw new Error('no');
      return Reflect.get(target, key);
    },
  });
  const wide = new AggregateError(
    Array.from({ length: 1000 }, () => new Error('x'.repeat(5000))),
    'wide',
  );
  const values: [string, unknown][] = Object.entries({
    circular,
    deep,
    nul,
    long,
    hostile,
    wide,
    text: 'text',
    none: null,
  });

  test.each(values)('%s', (_, value) => {
    const error = toJobError(value);
    expect(findJsonViolation(error)).toBeUndefined();
    expect(Buffer.byteLength(JSON.stringify(error))).toBeLessThan(32_768);
  });

  test('a long message leaves room for the stack frames', () => {
    expect(toJobError(long).stack).toContain('job-error.test.ts');
  });
});
