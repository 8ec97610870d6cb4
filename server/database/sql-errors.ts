// Classifies errors of Postgres: lost connections, statements that certainly did not happen and may be repeated, and
// invalid data. Also explains common errors to the person who starts a program.

/** SQL state of a statement in a transaction that has already failed. */
export const transactionFailed = '25P02';

export function sqlState(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}

/** Fields of an error in which Postgres quotes rows, keys and parameters. */
const fieldsWithValues = ['detail', 'where', 'internalQuery'];

/** Payloads and secrets must not reach the log, which shows the enumerable fields of an error. */
export function hideValues(error: unknown): void {
  if (!(error instanceof Error)) return;
  for (const name of fieldsWithValues) {
    if (Object.hasOwn(error, name)) Object.defineProperty(error, name, { enumerable: false });
  }
}

/** A table or its schema does not exist: it was dropped with its tenant, or never migrated. */
export function isMissingTable(error: unknown): boolean {
  const state = sqlState(error);
  return state === '42P01' || state === '3F000';
}

/** The connection is unusable, and it is unknown whether the statement took effect. */
export function isConnectionError(error: unknown): boolean {
  const state = sqlState(error);
  if (state === undefined)
    return error instanceof Error && /Connection terminated|not queryable|timeout|timed out/i.test(error.message);
  return /^(08|57P0[1-5]|25P0[34])/.test(state) || /^E[A-Z]+$/.test(state);
}

/**
 * A node of the cluster is unavailable, but the server that answered is not: the connection and the tenants of other
 * nodes are usable. It is unknown whether the statement took effect.
 */
export function isNodeError(error: unknown): boolean {
  return /^08/.test(sqlState(error) ?? '') && (error as { severity?: unknown }).severity === 'ERROR';
}

/** A connection to a single node was lost. Statements that were certainly rolled back keep that mark. */
export function toNodeError(error: unknown): unknown {
  if (!isDatabaseLost(error) || !(error instanceof Error)) return error;
  const lost = Object.assign(new Error(error.message, { cause: error }), { code: '08006', severity: 'ERROR' });
  if (uncommitted.has(error)) uncommitted.add(lost);
  return lost;
}

/** The connection to the whole database is lost. This is not an error of one tenant. */
export function isDatabaseLost(error: unknown): boolean {
  return isConnectionError(error) && !isNodeError(error);
}

/** Errors of connections that were lost before a COMMIT was sent. */
const uncommitted = new WeakSet<Error>();

/** A connection that is lost in here, for example by the server's limit for idle transactions, has rolled back. */
export async function beforeCommit<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    // After our own timeout no time is left for a retry.
    if (error instanceof Error && isConnectionError(error) && error.message !== timedOutMessage) uncommitted.add(error);
    throw error;
  }
}

export const timedOutMessage = 'statement timed out';

/** SQL state of a write on a standby or a read-only server. */
export const readOnlyState = '25006';

/**
 * The server is read-only, out of space, or its disk fails (class 58, or a file system that the system made read-only, which
 * Postgres reports as a missing right). Other statements may work; writes do not.
 */
export function isWriteError(error: unknown): boolean {
  const state = sqlState(error);
  if (state === '42501') return /read-only file system/i.test((error as Error).message);
  return state !== undefined && /^(58|25006$|53100$)/.test(state);
}

/** The server ended the transaction because of concurrent ones. It was rolled back. */
export function isConflict(error: unknown): boolean {
  return ['40001', '40P01'].includes(sqlState(error) ?? '');
}

/** The transaction certainly did not happen and may be tried again. */
export function isRetryable(error: unknown): boolean {
  return isConflict(error) || isStatementGone(error) || (error instanceof Error && uncommitted.has(error));
}

/** The server cannot do it now: overloaded, locked, stopping, or unable to write. A retry may succeed. */
export function isTransient(error: unknown): boolean {
  return /^(40|53|55|57)/.test(sqlState(error) ?? '') || isWriteError(error);
}

/** A lock was not granted in time. Nothing was done. */
export function isLockTimeout(error: unknown): boolean {
  return sqlState(error) === '55P03';
}

/** Retries serialization failures, deadlocks and connections lost before the COMMIT, which were all rolled back. */
export async function retryConflicts<T>(work: () => Promise<T>, attempts = 5): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (attempt >= attempts || !isRetryable(error)) throw error;
      await new Promise((resolve) => setTimeout(resolve, Math.random() * 20 * attempt));
    }
  }
}

/** A value out of range (22), a constraint (23) or a limit of Postgres, such as the size of an index row (54). */
export function isDataError(error: unknown): boolean {
  return /^(22|23|54)/.test(sqlState(error) ?? '');
}

/**
 * The server does not know the prepared statement, knows another one under its name, or its plan became invalid:
 * nothing was executed.
 */
export function isStatementGone(error: unknown): boolean {
  if (!(error instanceof Error) || !('code' in error)) return false;
  return (
    error.code === '26000' ||
    error.code === '42P05' ||
    (error.code === '0A000' && error.message.includes('cached plan'))
  );
}

/** Explains a common error of Postgres and what to do about it; undefined for other errors. */
export function explainDatabaseError(error: unknown): string | undefined {
  const state = sqlState(error) ?? '';
  const reason = reasonOf(error);
  if (state.startsWith('58') || (state === '42501' && isWriteError(error)))
    return `the database cannot write to its disk: ${reason}; see the log of its server`;
  if (state.startsWith('28')) {
    return `the database refused the login: ${reason}; check user and password in DATABASE_URL`;
  }
  if (state === '3D000') return `${reason}; create it, or name another one in DATABASE_URL`;
  if (state === '42501') {
    return `the database role lacks a right: ${reason}; as the owner of the database run GRANT CREATE ON DATABASE … TO …, and let the role own the schemas "leasehold" and "tenant_…"`;
  }
  if (state === '25006') return `the database accepts no writes: ${reason}; name the primary in DATABASE_URL`;
  if (state.startsWith('53'))
    return `the database has no room left: ${reason}; see connections, disk and memory of its server`;
  if (isConnectionError(error)) {
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
