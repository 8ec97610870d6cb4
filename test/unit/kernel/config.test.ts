import { randomBytes } from 'node:crypto';
import { expect, it } from 'vitest';
import { loadConfig } from '../../../server/kernel/config.ts';

it.each([
  'short',
  'k'.repeat(40),
  'changeme'.repeat(5),
  'test-admin-key-test-admin-key-test-admin-key',
  '0123456789012345678901234567890123456789',
  'abababababababababababababababababababac',
  'aaaaaaaaaaaaaaaaaaaaaaaaaaaabcdefghi',
  '0123456789abcdefghijklmnopqrstuv',
  '0123456789abcdef0123456789abcdeg',
  'abcdefghijklmnopqrstuvwxyz0123456789',
  'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz',
  'zyxwvutsrqponmlkjihgfedcba9876543210',
  'aabbccddeeffgghhiijjkkllmmnnooppqq',
  '1a2b3c4d5e6f7g8h9i0j1k2l3m4n5o6p',
  'qwertyuiopasdfghjklzxcvbnm1234567890',
  'changemechangemechangeme12345678',
])('an ADMIN_API_KEY that can be guessed is refused without showing it: %s', (key) => {
  let message = '';
  try {
    loadConfig({ ADMIN_API_KEY: key });
  } catch (error) {
    message = (error as Error).message;
  }
  expect(message).toContain('ADMIN_API_KEY=(hidden) is not allowed: at least 32 characters');
  expect(message).toContain('openssl rand');
  expect(message).not.toContain(key);
});

it.each([
  'b5f1c2d3e4a596877869504132435465768798a9bacbdced',
  'xK3v-Pq9_Lm2Zt7Yw5Rb8Nc4Hd6Jf1Gs',
  'correct horse battery staple with more words',
])('an ADMIN_API_KEY that cannot be guessed is accepted: %s', (key) => {
  expect(loadConfig({ ADMIN_API_KEY: key }).adminApiKey).toBe(key);
});

it.each(['hex', 'base64url'] as const)('a random key is accepted: %s', (encoding) => {
  for (let n = 0; n < 500; n++) {
    const key = randomBytes(24).toString(encoding).slice(0, 32);
    expect(loadConfig({ ADMIN_API_KEY: key }).adminApiKey).toBe(key);
  }
});
