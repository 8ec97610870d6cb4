// The reference worker with one fault, named by the first argument. The conformance kit must find it.
import { optionsFromEnvironment, work } from '../../../scripts/clients/example-worker.ts';
import { LeaseholdWorker } from '../../../server/remote-worker/index.ts';

type Fetch = typeof fetch;
const json = (body: unknown) => new Response(JSON.stringify(body), { status: 200 });
const pathOf = (input: Parameters<Fetch>[0]) => new URL(String(input)).pathname;

/** Each answers as a worker with this fault would have understood the server. */
const faults: Record<string, Fetch> = {
  'ignores cancel': async (input, init) => {
    const response = await fetch(input, init);
    if (!pathOf(input).endsWith('/heartbeat') || response.status !== 200) return response;
    const body = (await response.json()) as { job: object };
    return json({ ...body, job: { ...body.job, cancel_requested: false, cancel_intent: null } });
  },
  'ignores loss': async (input, init) => {
    const alive = json({ job: { cancel_requested: false } });
    if (!pathOf(input).endsWith('/heartbeat')) return fetch(input, init);
    const response = await fetch(input, init).catch(() => alive);
    return response.status === 200 ? response : alive;
  },
  'ignores drain': fetch,
  'ignores denial': async (input, init) => {
    const path = pathOf(input);
    if (path.includes('/lease/forged/')) return json({ job: { cancel_requested: false } });
    const response = await fetch(input, init);
    if (!path.endsWith('/lease/request') || response.status !== 200) return response;
    const body = (await response.json()) as { approved: boolean };
    return json(body.approved ? body : { approved: true, lease: { lease_id: 'forged', ttl_sec: 60 } });
  },
  'forgets stored calls': async (input, init) => {
    const response = await fetch(input, init);
    return pathOf(input).endsWith('/calls') && response.status === 200 ? json({ calls: [], next: null }) : response;
  },
  'ignores a refused step': async (input, init) => {
    const response = await fetch(input, init);
    return pathOf(input).endsWith('/steps') && response.status === 409 ? json({}) : response;
  },
  'sleeps under its lease': async (input, init) => {
    if (!pathOf(input).endsWith('/sleep')) return fetch(input, init);
    await new Promise((resolve) => setTimeout(resolve, 100));
    return json({ status: 'over', until: new Date().toISOString(), left_ms: 0 });
  },
  'dies without a server': (input, init) =>
    fetch(input, init).catch((error: Error) => {
      // Its own timeouts are no missing server.
      if (error.name === 'TimeoutError' || error.name === 'AbortError') throw error;
      process.exit(1);
    }),
};

const fault = process.argv[2] ?? '';
const faulty = faults[fault];
if (!faulty) throw new Error(`no such fault: ${fault}`);
const worker = new LeaseholdWorker({ ...optionsFromEnvironment(process.env), fetch: faulty }, work);
process.on('SIGTERM', () => fault !== 'ignores drain' && worker.drain());
await worker.run();
