import { expect, it } from 'vitest';
import { ensureValidLanguage } from '../../../server/dashboard/src/data/browser-locale.ts';

it.each([
  ['en-US@posix', 'en-US'],
  ['de-DE@euro', 'de-DE'],
  ['en_US.UTF-8', 'en'],
  ['C', 'en-US'],
  ['c.utf8', 'en-US'],
  ['', 'en-US'],
  ['pt-BR', 'pt-BR'],
])('a browser that speaks %j formats in %s', (language, wanted) => {
  const browser = Object.create({ language }) as { language: string };
  ensureValidLanguage(browser);
  expect(browser.language).toBe(wanted);
  expect(new Intl.NumberFormat(browser.language).format(1)).toBe('1');
});
