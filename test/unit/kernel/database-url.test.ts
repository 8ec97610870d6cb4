import { expect, test } from 'vitest';
import { parseDatabaseUrl } from '../../../server/kernel/database-url.ts';

test.each<[string, string[], boolean]>([
  ['postgres://u:p@h/db', ['postgres://u:p@h/db'], false],
  ['postgresql://u@h:6432/db?sslmode=require', ['postgresql://u@h:6432/db?sslmode=require'], false],
  ['postgres://h/db?target_session_attrs=read-write', ['postgres://h/db'], true],
  ['postgres://h/db?target_session_attrs=primary', ['postgres://h/db'], true],
  ['postgres://u:p@h1:5432,h2:5433/db', ['postgres://u:p@h1:5432/db', 'postgres://u:p@h2:5433/db'], true],
  ['postgres://h1,h2/db?target_session_attrs=any', ['postgres://h1/db', 'postgres://h2/db'], false],
  [
    'postgres://u:p%40@[::1]:5432,[::2]/db?target_session_attrs=read-write&application_name=x',
    ['postgres://u:p%40@[::1]:5432/db?application_name=x', 'postgres://u:p%40@[::2]/db?application_name=x'],
    true,
  ],
  ['postgres://u@/db?host=h1,h2&port=5433', ['postgres://u@h1:5433/db', 'postgres://u@h2:5433/db'], true],
  ['postgres:///db?host=/run/postgresql', ['postgres:///db?host=%2Frun%2Fpostgresql'], false],
])('%s', (text, urls, writableOnly) => {
  expect(parseDatabaseUrl(text)).toEqual({ urls, writableOnly });
});

test.each([
  'mysql://h/db',
  'h1,h2',
  'postgres://h1,,h2/db',
  'postgres://h1:a/db',
  'postgres://h/db?target_session_attrs=standby',
])('%s is refused', (text) => expect(parseDatabaseUrl(text)).toBeUndefined());
