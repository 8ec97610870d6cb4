// The nodes of the cluster that the environment names: which one has a tenant, and a node that is killed and started again.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import pg from 'pg';
import type { Database } from '../../../server/database/database.ts';
import type { Tenant } from '../../../server/tenants/tenant.ts';
import { eventually } from '../eventually.ts';
import { citusCluster } from './citus.ts';
import { addTenant } from './database.ts';

export interface CitusNode {
  host: string;
  port: number;
}

/** The nodes of a cluster may have the same port, on several machines. */
export function isSameNode(a: CitusNode, b: CitusNode): boolean {
  return a.host === b.host && a.port === b.port;
}

export function nodeAt(url: string): CitusNode {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port || 5432) };
}

/** The node that has the tenant, then the others. */
export async function nodesOf(db: Database, schemaName: string): Promise<[CitusNode, ...CitusNode[]]> {
  const rows = await db.query<CitusNode>(
    `select n.nodename as host, n.nodeport as port
       from pg_dist_node n
      where n.noderole = 'primary' and n.groupid > 0
      order by exists (select from pg_dist_placement p join pg_dist_shard s using (shardid)
                        where p.groupid = n.groupid and s.logicalrelid = ($1 || '.jobs')::regclass) desc, n.nodeid`,
    [schemaName],
  );
  return rows as [CitusNode, ...CitusNode[]];
}

/** Citus chooses the node: tenants are created until one is on a node that is wanted. */
export async function addTenantOn(db: Database, isWanted: (node: CitusNode) => boolean): Promise<Tenant> {
  for (;;) {
    const { tenant } = await addTenant(db);
    const [node] = await nodesOf(db, tenant.schemaName);
    if (isWanted(node)) return tenant;
  }
}

/**
 * A shell command that starts the node in the directory `$DATA`; it may fail until the killed one is gone. Undefined: nodes
 * cannot be killed here.
 */
export function startCommand(): string | undefined {
  return process.env.CITUS_START_NODE;
}

/** Kills the postmaster, on this machine. Resolves to a function that starts it again and waits until it answers. */
export async function killNode(node: CitusNode): Promise<() => Promise<void>> {
  const { url, pid, directory } = await postmasterOf(node);
  process.kill(pid, 'SIGKILL');
  return () =>
    eventually(
      async () => {
        execFileSync('sh', ['-c', startCommand() ?? 'false'], {
          env: { ...process.env, DATA: directory },
          stdio: 'ignore',
        });
        const probe = new pg.Client(url);
        probe.on('error', () => {});
        await probe.connect();
        await probe.end();
      },
      { timeoutMs: 120_000, everyMs: 1_000 },
    );
}

/**
 * Stops all processes of the node, on this machine (Linux): it accepts connections and never answers. Returns a function
 * that continues them.
 */
export async function freezeNode(node: CitusNode): Promise<() => void> {
  const { pid } = await postmasterOf(node);
  process.kill(pid, 'SIGSTOP');
  const frozen = [pid, ...readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').map(Number)];
  const signal = (name: NodeJS.Signals) => {
    for (const one of frozen) {
      // A session may have ended meanwhile.
      if (one > 0 && existsSync(`/proc/${one}`)) process.kill(one, name);
    }
  };
  signal('SIGSTOP');
  return () => signal('SIGCONT');
}

async function postmasterOf(node: CitusNode): Promise<{ url: string | undefined; pid: number; directory: string }> {
  const { coordinator, workers } = citusCluster() ?? { coordinator: '', workers: [] };
  const url = [coordinator, ...workers].find((each) => isSameNode(nodeAt(each), node));
  const client = new pg.Client(url);
  client.on('error', () => {});
  await client.connect();
  const { rows } = await client.query<{ file: string }>(`select pg_read_file('postmaster.pid') as file`);
  await client.end();
  const [pid = '', directory = ''] = rows[0]?.file.split('\n') ?? [];
  return { url, pid: Number(pid), directory };
}
