// Databases on a Citus cluster that the environment names. A database made from a template lacks the extension's
// metadata, so each is created on every node and joined to a cluster of its own.
import pg from 'pg';
import { eventually } from '../eventually.ts';
import { databaseUrl } from '../provision.ts';

export interface CitusCluster {
  coordinator: string;
  workers: string[];
}

/** The cluster of `npm run test:citus`; undefined in other runs. */
export function citusCluster(): CitusCluster | undefined {
  const { CITUS_COORDINATOR_URL: coordinator, CITUS_WORKER_URLS: workers = '' } = process.env;
  return coordinator ? { coordinator, workers: workers.split(',').filter((url) => url !== '') } : undefined;
}

export async function createOnAllNodes(cluster: CitusCluster, name: string): Promise<void> {
  await createDatabases(cluster, name);
  await joinNodes(cluster, name);
}

/** On each node one that knows nothing of the others. */
export async function createDatabases({ coordinator, workers }: CitusCluster, name: string): Promise<void> {
  await Promise.all([coordinator, ...workers].map((url) => run(url, [`create database ${name}`])));
}

/** Makes a cluster of the databases. That of the coordinator may have tenants. */
export async function joinNodes({ coordinator, workers }: CitusCluster, name: string): Promise<void> {
  await Promise.all([coordinator, ...workers].map((url) => run(databaseUrl(url, name), ['create extension citus'])));
  const { hostname, port } = new URL(coordinator);
  // One at a time: a node that is added gets the roles of the server, and two that do so at once fail.
  await locked(coordinator, () =>
    run(databaseUrl(coordinator, name), [
      `select citus_set_coordinator_host('${hostname}', ${port || 5432})`,
      ...workers.map((url) => `select citus_add_node('${new URL(url).hostname}', ${new URL(url).port || 5432})`),
    ]),
  );
}

async function locked(url: string, work: () => Promise<void>): Promise<void> {
  const client = new pg.Client(url);
  await client.connect();
  try {
    await client.query(`select pg_advisory_lock(hashtext('leasehold test: nodes'))`);
    await work();
  } finally {
    await client.end();
  }
}

export async function dropOnAllNodes({ coordinator, workers }: CitusCluster, name: string): Promise<void> {
  // The nodes' own processes connect to each other, and a node refuses the command while one of them has come back.
  for (const url of [coordinator, ...workers]) {
    await eventually(() => run(url, [`drop database if exists ${name} with (force)`]), { timeoutMs: 60_000 });
  }
}

async function run(url: string, statements: string[]): Promise<void> {
  const client = new pg.Client(url);
  client.on('error', () => {});
  await client.connect();
  try {
    // Creating a database is a command of each node here.
    await client.query('set citus.enable_create_database_propagation = off').catch(() => {});
    for (const statement of statements) await client.query(statement);
  } finally {
    await client.end();
  }
}
