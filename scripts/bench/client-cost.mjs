// `npm run bench -- client`: what leasehold/client costs beside a bare `fetch` with keep-alive that sends the same
// requests to the same daemon. Both run in one process, in short blocks by turns, and each block of the client is
// compared with the one of fetch right before it: what else the machine does hits both.
import { randomUUID } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import { median } from './rest/load.mjs';
import { startDaemon } from './rest/servers.mjs';

const blockRequests = 250;
const blocks = 24;
const callers = 10;
const later = '2100-01-01T00:00:00Z';

export async function measureClientCost(databaseUrl) {
  const { LeaseholdClient } = await import('../../dist/client/index.js');
  const daemon = await startDaemon(databaseUrl);
  try {
    const client = new LeaseholdClient({ url: daemon.url, apiKey: daemon.key });
    const { id } = await client.enqueue('demo.echo', {}, { runAt: later });
    const authorization = `Bearer ${daemon.key}`;
    const workloads = {
      enqueue: {
        fetch: async (n) => {
          const response = await fetch(`${daemon.url}/api/jobs`, {
            method: 'POST',
            headers: { authorization, 'content-type': 'application/json', 'idempotency-key': randomUUID() },
            body: JSON.stringify({ type: 'demo.echo', payload: { n }, target_id: `t${n % 100}`, run_at: later }),
          });
          if (!response.ok) throw new Error(`answered ${response.status}`);
          return response.json();
        },
        client: (n) => client.enqueue('demo.echo', { n }, { targetId: `t${n % 100}`, runAt: later }),
      },
      read: {
        fetch: async () => {
          const response = await fetch(`${daemon.url}/api/jobs/${id}`, { headers: { authorization } });
          if (!response.ok) throw new Error(`answered ${response.status}`);
          return response.json();
        },
        client: () => client.jobs.get(id),
      },
    };
    for (const [name, ways] of Object.entries(workloads)) report(name, await compare(ways));
  } finally {
    await daemon.stop();
  }
}

async function compare({ fetch, client }) {
  for (const way of [fetch, client]) await block(way, 5 * blockRequests);
  const pairs = [];
  for (let n = 0; n < blocks; n++) {
    // The order changes, so that neither always has the better place.
    const first = n % 2 === 0;
    const one = await block(first ? fetch : client, blockRequests);
    const other = await block(first ? client : fetch, blockRequests);
    pairs.push(first ? { fetch: one, client: other } : { fetch: other, client: one });
  }
  return pairs;
}

async function block(way, count) {
  let next = 0;
  const caller = async () => {
    while (next < count) await way(next++);
  };
  const cpu = process.cpuUsage();
  const start = performance.now();
  await Promise.all(Array.from({ length: callers }, caller));
  const { user, system } = process.cpuUsage(cpu);
  return { cpu: (user + system) / count, rate: (count * 1000) / (performance.now() - start) };
}

function report(name, pairs) {
  const of = (read) => median(pairs.map(read));
  const line = {
    workload: name,
    'fetch: CPU µs': of((p) => p.fetch.cpu),
    'client: CPU µs': of((p) => p.client.cpu),
    'CPU added %': (of((p) => p.client.cpu / p.fetch.cpu) - 1) * 100,
    'fetch: requests/s': of((p) => p.fetch.rate),
    'client: requests/s': of((p) => p.client.rate),
    'rate lost %': (1 - of((p) => p.client.rate / p.fetch.rate)) * 100,
  };
  for (const [key, value] of Object.entries(line))
    if (typeof value === 'number') line[key] = Math.round(value * 10) / 10;
  process.stdout.write(`${JSON.stringify(line)}\n`);
}
