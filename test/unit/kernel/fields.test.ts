// Addresses are bounded by what is stored and sent, not by what was typed.
import { expect, test } from 'vitest';
import { z } from 'zod';
import { httpUrlField, normalizeUrl, parseFields } from '../../../server/kernel/fields.ts';
import { tenantSettings } from '../../../server/tenants/tenant.ts';

const faultOf = (url: string) => httpUrlField().safeParse(url).error?.issues[0]?.message;

test('the limit applies to the encoded form: percent signs in the path, punycode in the host', () => {
  expect(normalizeUrl('https://bücher.example/語?q=é')).toBe('https://xn--bcher-kva.example/%E8%AA%9E?q=%C3%A9');
  const prefix = 'https://example.com/';
  expect(faultOf(prefix + '語'.repeat((2048 - prefix.length) / 9))).toBeUndefined();
  expect(faultOf(prefix + '語'.repeat((2048 - prefix.length) / 9 + 1))).toContain('2048 bytes once encoded');
  expect(faultOf(prefix + 'x'.repeat(2048 - prefix.length))).toBeUndefined();
  expect(faultOf(prefix + 'x'.repeat(2049 - prefix.length))).toBeDefined();
});

test('credentials and other protocols are refused, in the settings of a tenant too', () => {
  expect(faultOf('https://user@example.com/')).toContain('user name');
  expect(faultOf('https://:secret@example.com/')).toContain('user name');
  expect(faultOf('ftp://example.com/')).toContain('http or https');
  const settings = (url: string) => tenantSettings.safeParse({ webhook: { url } }).success;
  expect(settings('https://example.com/hook')).toBe(true);
  expect(settings(`https://example.com/${'語'.repeat(1950)}`)).toBe(false);
});

test('a missing field is named as required; a value of another type says what was expected', () => {
  const schema = z.object({ type: z.string(), kind: z.enum(['a', 'b']), seconds: z.number() });
  expect(() => parseFields(schema, {})).toThrow('type: is required; kind: is required; seconds: is required');
  expect(() => parseFields(schema, { type: 'x', kind: 'a', seconds: '6' })).toThrow(
    'seconds: Invalid input: expected number, received string',
  );
});
