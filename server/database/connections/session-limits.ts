// Session limits that the server enforces, so that a client that is frozen, blocked or gone cannot keep locks. Behind a
// pooler in transaction mode, settings may last for a transaction only, so each BEGIN sends the limits.
import type pg from 'pg';
import { bindParameters } from '../sql.ts';
import { keepsNames } from './statement-names.ts';

export interface SessionLimits {
  /** A statement that takes longer is canceled. */
  statementMs: number;
  /** A statement that waits longer for a lock fails; zero waits without limit. */
  lockMs: number;
  /** A transaction whose client is silent for longer is rolled back and its connection closed. */
  idleInTransactionMs: number;
}

export interface SessionFacts {
  /** The answering server process is the connected one: there is no pooler. */
  direct: boolean;
  /** Named statements can be used: directly, or behind a pooler that keeps them. */
  keepsNames: boolean;
  /** The database is a Citus cluster, with each tenant's tables on one of its nodes. */
  sharded: boolean;
  /** The database's clock at `readAt`, in milliseconds since 1970. */
  serverTimeMs: number;
  /** Monotonic time, halfway between request and answer. */
  readAt: number;
}

/** How long a transaction may hold its locks while its client is silent. */
export const idleInTransactionMs = 3_000;
/**
 * Longer than the limit for idle transactions, so that a waiting statement gets the lock of a frozen holder instead of
 * an error.
 */
export const lockTimeoutMs = 5_000;
/** Detects a server whose host vanished; by default the system probes after two hours. */
export const keepAliveAfterMs = 10_000;
// Ends the connections of clients whose host vanished (no packet is acknowledged) and of frozen clients (they do not
// read).
const tcpUserTimeoutMs = 10_000;
const keepalive = { tcp_keepalives_idle: '10', tcp_keepalives_interval: '3', tcp_keepalives_count: '3' };

// Behind a pooler the server process is another one than the client's, and its settings would reach other clients.
const openStatement = `
  select pid = :processId as direct,
         exists (select 1 from pg_extension where extname = 'citus') as sharded,
         extract(epoch from clock_timestamp())::float8 * 1000 as now_ms,
         case when pid = :processId
              then (select count(set_config(name, value, false))
                      from unnest(:names::text[], :settings::text[]) as s(name, value)) end,
         case when pid = :processId and version() ~* 'linux'
              then set_config('tcp_user_timeout', :tcpUserTimeoutMs, false) end
    from (select pg_backend_pid() as pid) as p`;

/**
 * Sets the limits of a direct connection and reads the facts of its session, in one statement. Behind a pooler, another
 * one finds out whether it keeps names, if the connection has use for them.
 */
export async function openSession(
  client: pg.ClientBase,
  limits: SessionLimits,
  { mayName }: { mayName: boolean },
): Promise<SessionFacts> {
  const { processID: processId } = client as unknown as { processID: number };
  const settings: Record<string, string> = {
    // Only parsing is saved. A kept plan would still scan a table that was small when the plan was made, and could try
    // the locks of lanes before it checks whether their jobs match.
    plan_cache_mode: 'force_custom_plan',
    statement_timeout: String(limits.statementMs),
    lock_timeout: String(limits.lockMs),
    idle_in_transaction_session_timeout: String(limits.idleInTransactionMs),
    ...keepalive,
  };
  const sentAt = performance.now();
  const { rows } = await client.query<{ direct: boolean; sharded: boolean; now_ms: number }>(
    bindParameters(openStatement, {
      processId,
      names: Object.keys(settings),
      settings: Object.values(settings),
      tcpUserTimeoutMs: String(tcpUserTimeoutMs),
    }),
  );
  const answeredAt = performance.now();
  const [row] = rows;
  const direct = row?.direct === true;
  return {
    direct,
    keepsNames: direct || (mayName && (await keepsNames(client))),
    sharded: row?.sharded === true,
    serverTimeMs: row?.now_ms ?? Date.now(),
    readAt: (sentAt + answeredAt) / 2,
  };
}

/**
 * Sets limits of a transaction, its quoted role and more settings, where BEGIN is not sent. Unlike SET, Citus does not
 * forward it. Undefined if there is nothing to set.
 */
export function settingsQuery(
  { statementMs, lockMs }: Partial<SessionLimits>,
  role?: string,
  more: Record<string, string> = {},
): string | undefined {
  const settings = [
    ['statement_timeout', statementMs],
    ['lock_timeout', lockMs],
    ['role', role?.replaceAll('"', '')],
    ...Object.entries(more),
  ].filter(([, value]) => value !== undefined);
  if (settings.length === 0) return undefined;
  return `select ${settings.map(([name, value]) => `set_config('${name}', '${value}', true)`).join(', ')}`;
}

/**
 * A BEGIN with limits and more settings in the same message: the simple protocol accepts several statements at once.
 */
export function beginWith(
  { statementMs, lockMs, idleInTransactionMs: idleMs }: Partial<SessionLimits>,
  more: Record<string, string> = {},
): string {
  const limits = [
    ['statement_timeout', statementMs],
    ['lock_timeout', lockMs],
    ['idle_in_transaction_session_timeout', idleMs],
    ...Object.entries(more),
  ].flatMap(([name, value]) => (value === undefined ? [] : [`set local ${name} = ${value}`]));
  if (limits.length === 0) return 'begin';
  // Citus must not forward these settings to its nodes; plain Postgres accepts this one as a custom setting.
  return ['begin', "set local citus.propagate_set_commands = 'local'", ...limits].join('; ');
}
