// Messages for common errors of Postgres: what they mean and what to do.
import { isConnectionError, sqlState } from './database.ts';

/** Undefined for other errors. */
export function explainDatabaseError(error: unknown): string | undefined {
  const state = sqlState(error) ?? '';
  const reason = reasonOf(error);
  if (state.startsWith('28')) {
    return `the database refused the login: ${reason}; check user and password in DATABASE_URL`;
  }
  if (state === '3D000') return `${reason}; create it, or name another one in DATABASE_URL`;
  if (state === '42501') {
    return `the database role lacks a right: ${reason}; as the owner of the database run GRANT CREATE ON DATABASE … TO …, and let the role own the schemas "leasehold" and "tenant_…"`;
  }
  // 25006: a standby, or read-only.
  if (isConnectionError(error) || state.startsWith('53') || state === '25006') {
    return `the database cannot be reached: ${reason}; check DATABASE_URL`;
  }
  return undefined;
}

/** An AggregateError of several addresses has no message of its own. */
function reasonOf(error: unknown): string {
  const inner = error instanceof AggregateError && error.message === '' ? error.errors[0] : error;
  const text = inner instanceof Error ? inner.message : String(inner);
  return text === '' ? (sqlState(error) ?? 'no reason was given') : text;
}
