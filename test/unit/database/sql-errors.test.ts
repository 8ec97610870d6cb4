import { describe, expect, it } from 'vitest';
import { explainDatabaseError, isTransient, isWriteError } from '../../../server/database/sql-errors.ts';

const errorOf = (code: string, message = 'refused') => Object.assign(new Error(message), { code });

describe('errors of a disk', () => {
  it.each([
    errorOf('53100', 'could not extend file: No space left on device'),
    errorOf('58000'),
    errorOf('58030', 'could not read block 0: Input/output error'),
    errorOf('58P01', 'could not open file'),
    errorOf('42501', 'could not open file "base/5/1259": Read-only file system'),
    errorOf('25006'),
  ])('$code may pass: $message', (error) => {
    expect([isWriteError(error), isTransient(error)]).toEqual([true, true]);
  });

  it.each([errorOf('42501', 'permission denied for table jobs'), errorOf('23505'), new Error('58030')])(
    'is not %s',
    (error) => {
      expect([isWriteError(error), isTransient(error)]).toEqual([false, false]);
    },
  );

  it('are explained to the person who starts a program', () => {
    expect(explainDatabaseError(errorOf('58030', 'Input/output error'))).toContain('cannot write to its disk');
    expect(explainDatabaseError(errorOf('42501', 'permission denied'))).toContain('lacks a right');
  });
});
