import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { findJsonViolation } from '../../../../server/kernel/json/json-violations.ts';

describe('findJsonViolation', () => {
  it('finds nothing in JSON without NUL, lone surrogates or __proto__', () => {
    fc.assert(
      fc.property(fc.jsonValue({ stringUnit: 'grapheme' }), (value) => {
        const text = JSON.stringify(value);
        fc.pre(!text.includes('\\u0000') && !text.includes('__proto__'));
        expect(findJsonViolation(JSON.parse(text))).toBeUndefined();
      }),
    );
  });

  it('finds a NUL at any position', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(fc.nat(3), fc.stringMatching(/^[a-z]{1,5}$/)), { maxLength: 50 }), (path) => {
        const value = path.reduceRight<unknown>(
          (inner, step) => (typeof step === 'number' ? [...Array(step).fill(0), inner] : { [step]: inner }),
          'a\u0000b',
        );
        const field = path.reduce<string>(
          (at, step) => (typeof step === 'number' ? `${at}[${step}]` : at ? `${at}.${step}` : step),
          '',
        );
        expect(findJsonViolation(value)?.message).toContain('\\u0000');
        expect(findJsonViolation(value)?.field).toBe(field.length > 300 ? `${field.slice(0, 300)}…` : field);
      }),
    );
  });

  it('allows 100 levels and not 101, and does not overflow at a million', () => {
    const nest = (levels: number) => {
      let value: unknown = 1;
      for (let i = 0; i < levels; i++) value = [value];
      return value;
    };
    expect(findJsonViolation(nest(100))).toBeUndefined();
    expect(findJsonViolation(nest(101))?.message).toContain('deeper than 100');
    expect(findJsonViolation(nest(1_000_000))?.message).toContain('deeper than 100');
  });
});
