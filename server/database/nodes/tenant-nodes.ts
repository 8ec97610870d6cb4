// In a cluster, sends the work on a tenant to its node, over separate connections. Statements there name shards, so one
// Postgres plans and commits them, and a lost node stops only its own tenants. docs/decisions/0014-tenant-nodes.md has
// the reasons.

import type { Logger } from '../../kernel/logger.ts';
import { Connections, type ConnectionsOptions } from '../connections/connections.ts';
import { DeferredStatements } from '../deferred-statements.ts';
import type { Schema } from '../identifiers.ts';
import { isNodeError } from '../sql-errors.ts';
import { NodeWatch, serverAnswers, silentNode } from './node-watch.ts';
import { type Placement, Placements, type Read, TenantMoved, tenantOf } from './placements.ts';

/** A tenant on its node. */
export interface TenantNode {
  connections: Connections;
  watch: NodeWatch;
  guard: string[];
  /** Rewrites the statement to shards. Tables of other tenants, and new tables, are left to Citus. */
  rename(text: string): string;
}

/** A statement of a tenant, for a connection of the caller's to the tenant's node. Plain data. */
export interface StatementOnNode {
  /** `host:port`. */
  node: string;
  url: string;
  /** Statements that run before it in the same transaction. The same array as long as the tenant has not moved. */
  guard: string[];
  text: string;
}

// More attempts would only help a tenant that moves between every two statements.
const maxMoves = 5;

export class TenantNodes {
  readonly #options: ConnectionsOptions;
  readonly #placements: Placements;
  readonly #servers = new Map<string, Pick<TenantNode, 'connections' | 'watch'>>();
  readonly #nodes = new WeakMap<Placement, TenantNode>();

  /** `read` asks the coordinator. */
  constructor(options: ConnectionsOptions, read: Read) {
    this.#options = options;
    this.#placements = new Placements(read);
  }

  /** Runs `work` on the node of the tenant that the statement names; without a node, on the coordinator. */
  async run<T>(text: string, work: (node: TenantNode | undefined) => Promise<T>): Promise<T> {
    for (let moves = 0; ; moves++) {
      const placement = await this.#find(text);
      if (placement === undefined) return work(undefined);
      try {
        return await work(this.#nodeOf(placement));
      } catch (error) {
        const hasMoved = error instanceof TenantMoved;
        // The node may have a new address.
        if (hasMoved || isNodeError(error)) this.#placements.forget(placement);
        if (!hasMoved || moves >= maxMoves) throw error;
      }
    }
  }

  /** The same for a transaction, whose first statement names the tenant. */
  async runTransaction<T, Tx extends Pick<DeferredStatements, 'query'>>(
    work: (tx: Tx) => Promise<T>,
    run: (node: TenantNode | undefined, work: (tx: Tx) => Promise<T>) => Promise<T>,
  ): Promise<T> {
    const statements = new DeferredStatements();
    const result = work(statements as Pick<DeferredStatements, 'query'> as Tx);
    const first = await Promise.race([statements.first, result.then(() => undefined)]);
    if (first === undefined) return result;
    try {
      return await this.run(first, (node) =>
        run(node, (tx) => {
          statements.sendTo(tx);
          return result;
        }),
      );
    } catch (error) {
      statements.fail(error);
      await result.catch(() => {});
      throw error;
    }
  }

  /** The statement for the node to which the last statement of the tenant went. */
  onNode(schema: Schema, text: string): StatementOnNode | undefined {
    const placement = this.#placements.known(schema);
    const renamed = placement?.rename(text);
    if (placement === undefined || renamed === undefined) return undefined;
    return { node: nameOf(placement), url: this.#urlOf(placement), guard: placement.guard, text: renamed };
  }

  /**
   * Before a statement goes through the coordinator, which would wait for a node that does not answer. Undefined if all
   * answer.
   */
  refuseIfSilent(text: string): Promise<void> | undefined {
    for (const { watch } of this.#servers.values()) if (watch.isSilent) return this.#refuseIfSilent(text);
    return undefined;
  }

  async #refuseIfSilent(text: string): Promise<void> {
    const placement = await this.#find(text);
    if (placement !== undefined && this.#serverOf(placement).watch.isSilent) throw silentNode();
  }

  async close(): Promise<void> {
    const servers = [...this.#servers.values()];
    await Promise.all(servers.flatMap(({ connections, watch }) => [connections.pool.end(), watch.close()]));
  }

  async #find(text: string): Promise<Placement | undefined> {
    const schema = tenantOf(text);
    if (schema === undefined) return undefined;
    const known = await this.#placements.find(schema);
    if (known === undefined) return undefined;
    const renamed = known.rename(text);
    // The statement names no table. The tenant's functions read the control schema, which only the coordinator has.
    if (renamed === text) return undefined;
    if (renamed !== undefined) return known;
    // A table that is newer than the cached names, or that does not belong to the tenant.
    this.#placements.forget(known);
    const read = await this.#placements.find(schema);
    return read?.rename(text) === undefined ? undefined : read;
  }

  #nodeOf(placement: Placement): TenantNode {
    let node = this.#nodes.get(placement);
    if (node === undefined) {
      const rename = (text: string) => placement.rename(text) ?? text;
      node = { ...this.#serverOf(placement), guard: placement.guard, rename };
      this.#nodes.set(placement, node);
    }
    return node;
  }

  #serverOf(placement: Placement): Pick<TenantNode, 'connections' | 'watch'> {
    const name = nameOf(placement);
    let server = this.#servers.get(name);
    if (server === undefined) {
      const url = this.#urlOf(placement);
      const logger: Logger = this.#options.logger.child({ node: name });
      const connections = new Connections({ ...this.#options, url, logger, isNode: true });
      const answers = () => serverAnswers(url);
      const watch = new NodeWatch({ logger, answers, onSilent: () => connections.destroyUsed() });
      server = { connections, watch };
      this.#servers.set(name, server);
    }
    return server;
  }

  #urlOf({ host, port }: Placement): string {
    const url = new URL(this.#options.url);
    url.hostname = host;
    url.port = String(port);
    return url.href;
  }
}

function nameOf({ host, port }: Placement): string {
  return `${host}:${port}`;
}
