// The world outside: where the worker under test leaves the traces of its work. They tell when it
// really worked, whatever it says to the server.
import { randomUUID } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { read } from './proxy.ts';

export interface Trace {
  /** On performance.now(). */
  at: number;
  jobId: string;
  /** Of a durable step. */
  step?: string;
  leaseId?: string;
  /** What the worker was answered. */
  receipt: string;
}

export class Effects {
  readonly traces: Trace[] = [];
  #server: Server | undefined;
  #port = 0;

  async open(): Promise<void> {
    const server = createServer(async (request, response) => {
      const at = performance.now();
      try {
        const { job_id, step, lease_id } = JSON.parse(await read(request));
        const receipt = randomUUID();
        this.traces.push({ at, jobId: String(job_id), step, leaseId: lease_id, receipt });
        response.end(JSON.stringify({ receipt }));
      } catch {
        // A trace that cannot be read is none.
      }
      if (!response.writableEnded) response.end();
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    this.#port = (server.address() as AddressInfo).port;
    this.#server = server;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}/effects`;
  }

  of(jobId: string): Trace[] {
    return this.traces.filter((trace) => trace.jobId === jobId);
  }

  async close(): Promise<void> {
    const server = this.#server;
    server?.closeAllConnections();
    await new Promise((resolve) => (server ? server.close(resolve) : resolve(undefined)));
  }
}
