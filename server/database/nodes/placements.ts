// Caches the node of each tenant of a cluster and its shard names, until a statement finds that the tenant has moved.
import { quoteSchema, type Schema } from '../identifiers.ts';
import { bindParameters } from '../sql.ts';
import { sqlState } from '../sql-errors.ts';
import { type Shards, toShardNames, withNodeNumbers } from './shard-names.ts';

export interface Placement {
  schema: Schema;
  host: string;
  port: number;
  /** The statement over shards; undefined if it names a table whose shard is not known. */
  rename(text: string): string | undefined;
  /**
   * Statements that follow BEGIN. They take the lock that a move of the tenant takes on all nodes before it ends, so
   * the tenant cannot move until the transaction has ended; they fail if it has already moved. There are two
   * statements, because the snapshot of a statement is taken before it waits for the lock.
   */
  guard: string[];
}

interface Row {
  table: string;
  shard: string;
  host: string;
  port: number;
}

export type Read = <R extends object>(text: string, values: unknown[]) => Promise<R[]>;

const shareLock = 5;

const tablesOfSchema = `
  select c.relname as table, s.shardid::text as shard, n.nodename as host, n.nodeport as port
    from pg_catalog.pg_namespace as ns
    join pg_catalog.pg_class as c on c.relnamespace = ns.oid
    join pg_catalog.pg_dist_shard as s on s.logicalrelid = c.oid
    join pg_catalog.pg_dist_placement as p on p.shardid = s.shardid and p.shardstate = 1
    join pg_catalog.pg_dist_node as n on n.groupid = p.groupid and n.noderole = 'primary'
   where ns.nspname = :schema
     -- Only the owner may take the lock.
     and pg_has_role(c.relowner, 'usage')`;

export class Placements {
  readonly #read: Read;
  readonly #known = new Map<Schema, Placement>();
  readonly #reading = new Map<Schema, Promise<Placement | undefined>>();

  /** `read` asks the coordinator. */
  constructor(read: Read) {
    this.#read = read;
  }

  /** Returns undefined if statements must go through the coordinator, for example while the tenant is created. */
  find(schema: Schema): Placement | undefined | Promise<Placement | undefined> {
    const known = this.#known.get(schema);
    if (known !== undefined) return known;
    let reading = this.#reading.get(schema);
    if (reading === undefined) {
      reading = this.#find(schema).finally(() => this.#reading.delete(schema));
      this.#reading.set(schema, reading);
    }
    return reading;
  }

  known(schema: Schema): Placement | undefined {
    return this.#known.get(schema);
  }

  /** The tenant has moved, or its tables have changed. */
  forget(placement: Placement): void {
    if (this.#known.get(placement.schema) === placement) this.#known.delete(placement.schema);
  }

  async #find(schema: Schema): Promise<Placement | undefined> {
    const { text, values } = bindParameters(tablesOfSchema, { schema: schema.replaceAll('"', '') });
    const rows = await this.#read<Row>(text, values);
    const [first] = rows;
    const shards = new Map(rows.map(({ table, shard }) => [table, shard]));
    // One shard per table, all on one node; while tables are created there may be fewer.
    if (first === undefined || shards.size !== rows.length) return undefined;
    if (rows.some(({ host, port }) => host !== first.host || port !== first.port)) return undefined;
    const { host, port, shard } = first;
    const placement = { schema, host, port, guard: guardOf(shard), rename: renaming(schema, shards) };
    this.#known.set(schema, placement);
    return placement;
  }
}

// Most statements of a tenant are one of some dozen texts.
const maxRenamed = 200;

function renaming(schema: Schema, shards: Shards): (text: string) => string | undefined {
  const known = new Map<string, string | undefined>();
  return (text) => {
    if (known.has(text)) return known.get(text);
    const renamed = toShardNames(text, schema, shards);
    if (known.size >= maxRenamed) known.clear();
    known.set(text, renamed);
    return renamed;
  };
}

/** SQL states of the guard: its division by zero, and the lock of a shard that was dropped with its tenant. */
const movedStates = ['22012', 'XX000'];

/** The guard failed: nothing was written, and the placement must be read again. */
export class TenantMoved extends Error {
  override name = 'TenantMoved';

  constructor(cause: unknown) {
    super('the tenant is on another node of the cluster', { cause });
  }
}

/** Sends BEGIN and a guard. The first error counts, because the server refuses the rest after it. */
export async function guarded(answers: Promise<unknown>[]): Promise<void> {
  await Promise.all(answers).catch((error: unknown) => {
    throw guardError(error);
  });
}

export function guardError(error: unknown): unknown {
  return movedStates.includes(sqlState(error) ?? '') ? new TenantMoved(error) : error;
}

/** A move locks all tables of the tenant, so one of them is enough. */
function guardOf(shard: string): string[] {
  return [
    `select lock_shard_metadata(${shareLock}, array[${shard}])`,
    `select 1 / count(*) from pg_catalog.pg_dist_placement
      where shardid = ${shard} and groupid = (select groupid from pg_catalog.pg_dist_local_group)`,
  ];
}

const tenantName = /"(tenant_[a-z0-9_]+)"\./;
const isStatement = /^\s*(?:select|with|insert|update|delete|explain)\b/i;

/** Returns the tenant that a statement names; undefined for commands and for statements without a tenant. */
export function tenantOf(text: string): Schema | undefined {
  const [, name] = tenantName.exec(text) ?? [];
  return name !== undefined && isStatement.test(text) ? quoteSchema(name) : undefined;
}

/** The statement as it goes through the coordinator of a cluster. */
export function forCoordinator(text: string): string {
  const schema = tenantOf(text);
  return schema === undefined ? text : withNodeNumbers(text, schema);
}
