// How many database nodes and daemons an installation needs. Computes with the costs of one job that `npm run bench:cost`
// and `npm run bench` measured; what a node can do is an assumption that can be set. docs/scaling.md explains both.

/** Measured: they do not depend on the machine. */
export const jobCost = {
  /** Bytes of write-ahead log of the whole life of a job, with statistics and seals. */
  walBytes: { plain: 2_640, lanes: 3_750 },
  /** Bytes on disk, tables and indexes, until retention removes them. */
  storedBytes: { plain: 1_970, lanes: 2_420 },
};

/** Of one database node. The first two were measured on two cores; the rest is what such machines offer. */
export const smallNode = {
  cores: 2,
  /**
   * Jobs per second and core, enqueued one by one: W2 of docs/performance.md over two cores, and the ratio of W4 to W1 for
   * lanes. Batches need a fifth of it.
   */
  jobsPerCore: { plain: 4_400, lanes: 2_800 },
  /** Sustained bytes of write-ahead log per second, with a standby that receives them. */
  walBytesPerSecond: 100_000_000,
  diskBytes: 1_000_000_000_000,
  maxConnections: 500,
};

export type NodeKind = typeof smallNode;

export interface Load {
  tenants: number;
  jobsPerSecond: number;
  /** How long a handler runs. */
  secondsPerJob: number;
  /** The share of the largest tenant, 0 to 1: a tenant is on one node. */
  topShare: number;
  lanes: boolean;
  retentionDays: number;
}

export interface Choices {
  node: NodeKind;
  /** Of what was measured alone on a machine, how much is planned for: the rest is for peaks, vacuum and queries. */
  utilization: number;
  /** What a node of a cluster does, of what it does alone: each transaction holds a lock against moves. docs/scaling.md has the ratios. */
  clusterFactor: number;
  slotsPerDaemon: number;
  connectionsPerDaemon: number;
  maxTenantsPerCluster: number;
}

export const defaults: Choices = {
  node: smallNode,
  utilization: 0.5,
  clusterFactor: 0.6,
  slotsPerDaemon: 200,
  connectionsPerDaemon: 12,
  maxTenantsPerCluster: 8_000,
};

export interface Answer {
  step: 'one Postgres' | 'one larger Postgres' | 'a Citus cluster' | 'cells';
  nodes: number;
  cells: number;
  daemons: number;
  /** What decides the number of nodes. */
  limit: Resource;
  /** Of one node, 1 is all that is planned for. */
  used: Record<Resource, number>;
  walBytesPerSecond: number;
  storedBytes: number;
  /** The largest tenant fits on one node. */
  topTenantFits: boolean;
  connections: number;
}

export type Resource = 'cpu' | 'wal' | 'disk' | 'connections' | 'tenants';

/** A machine with more cores, before there are several. */
const maxCores = 64;

export function sizeOf(load: Load, choices: Choices = defaults): Answer {
  const daemons = Math.max(2, Math.ceil((load.jobsPerSecond * load.secondsPerJob) / choices.slotsPerDaemon));
  const needs = needsOf(load, daemons, choices);
  const alone = maxOf(usedOf(needs, load, choices.node, choices));
  const scaled = scaleUp(choices.node);
  const onLarge = maxOf(usedOf(needs, load, scaled, choices));
  const answer = (step: Answer['step'], nodes: number, cells: number, node: NodeKind, factor: number): Answer => {
    const used = usedOf(needs, load, node, choices);
    for (const resource of ['cpu', 'wal', 'disk'] as const) used[resource] /= nodes * (resource === 'cpu' ? factor : 1);
    // Connections go to the coordinator of each cell.
    used.connections /= cells;
    used.tenants /= cells;
    const ofTopTenant = maxOf(usedOf(scaleNeeds(needs, load.topShare), { ...load, tenants: 1 }, node, choices));
    return {
      step,
      nodes,
      cells,
      daemons,
      limit: ofNodes(used),
      used,
      walBytesPerSecond: needs.wal,
      storedBytes: needs.disk,
      topTenantFits: ofTopTenant.value <= (nodes === 1 ? 1 : factor),
      connections: needs.connections,
    };
  };
  if (alone.value <= 1) return answer('one Postgres', 1, 1, choices.node, 1);
  if (onLarge.value <= 1) return answer('one larger Postgres', 1, 1, scaled, 1);
  const used = usedOf(needs, load, scaled, choices);
  const nodes = Math.max(2, Math.ceil(Math.max(used.cpu / choices.clusterFactor, used.wal, used.disk)));
  const cells = Math.max(1, Math.ceil(Math.max(used.connections, used.tenants)));
  return answer(
    cells > 1 ? 'cells' : 'a Citus cluster',
    Math.max(nodes, 2 * cells),
    cells,
    scaled,
    choices.clusterFactor,
  );
}

interface Needs {
  jobsPerSecond: number;
  wal: number;
  disk: number;
  connections: number;
}

function needsOf(load: Load, daemons: number, { connectionsPerDaemon }: Choices): Needs {
  const kind = load.lanes ? 'lanes' : 'plain';
  return {
    jobsPerSecond: load.jobsPerSecond,
    wal: load.jobsPerSecond * jobCost.walBytes[kind],
    disk: load.jobsPerSecond * 86_400 * load.retentionDays * jobCost.storedBytes[kind],
    connections: daemons * connectionsPerDaemon,
  };
}

function scaleNeeds(needs: Needs, share: number): Needs {
  const { jobsPerSecond, wal, disk } = needs;
  return { jobsPerSecond: jobsPerSecond * share, wal: wal * share, disk: disk * share, connections: 0 };
}

function usedOf(needs: Needs, load: Load, node: NodeKind, choices: Choices): Record<Resource, number> {
  const perCore = node.jobsPerCore[load.lanes ? 'lanes' : 'plain'];
  return {
    cpu: needs.jobsPerSecond / (perCore * node.cores * choices.utilization),
    wal: needs.wal / (node.walBytesPerSecond * choices.utilization),
    disk: needs.disk / (node.diskBytes * choices.utilization),
    connections: needs.connections / node.maxConnections,
    tenants: load.tenants / choices.maxTenantsPerCluster,
  };
}

/** Extrapolated: cores scale, up to locks and WAL insertion, of which half is assumed to remain; disks are larger and faster. */
function scaleUp(node: NodeKind): NodeKind {
  const factor = maxCores / node.cores / 2;
  return {
    ...node,
    cores: node.cores * factor,
    walBytesPerSecond: node.walBytesPerSecond * 5,
    diskBytes: node.diskBytes * 16,
    maxConnections: node.maxConnections * 4,
  };
}

function maxOf(used: Record<Resource, number>): { resource: Resource; value: number } {
  const [resource, value] = (Object.entries(used) as [Resource, number][]).reduce((a, b) => (b[1] > a[1] ? b : a));
  return { resource, value };
}

function ofNodes(used: Record<Resource, number>): Resource {
  return maxOf(used).resource;
}
