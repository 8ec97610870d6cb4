// A client of the daemons' HTTP API that logs every operation with what it knows of its outcome: `ok` was acknowledged,
// `failed` was refused, `unknown` may or may not have happened.
import type { TestDaemon } from '../daemons.ts';
import { machineMs, type RunLog } from '../run-log.ts';

type OperationName = 'enqueue' | 'cancel' | 'pause' | 'resume' | 'resolve' | 'foreignRead' | 'sendEvent' | 'answer';

export interface Operation {
  name: OperationName;
  tenant: string;
  daemon: string;
  startedAt: number;
  endedAt: number;
  outcome: 'ok' | 'failed' | 'unknown';
  status?: number;
  /** The job that was made, or that is acted on. */
  job?: string;
  target?: string;
  /** The idempotency key of an enqueue, the id of an event. */
  key?: string;
  /** The job after which an enqueued one runs. */
  after?: string;
  /** The question that is answered, and the number it gets. */
  question?: string;
  number?: number;
  error?: string;
}

export interface NewOperation {
  name: OperationName;
  daemon: TestDaemon;
  tenant: string;
  apiKey: string;
  method: 'GET' | 'POST';
  path: string;
  body?: unknown;
  job?: string;
  target?: string;
  key?: string;
  after?: string;
  question?: string;
  number?: number;
}

// A client does not wait longer; what happens after that is unknown to it.
const giveUpMs = 5_000;

export async function operate(log: RunLog, request: NewOperation): Promise<Operation> {
  const { name, tenant, daemon, job, target, key, after, question, number } = request;
  const startedAt = machineMs();
  const sent = await send(request);
  const operation: Operation = {
    name,
    tenant,
    daemon: daemon.name,
    startedAt,
    endedAt: machineMs(),
    ...(target !== undefined && { target }),
    ...(key !== undefined && { key }),
    ...(job !== undefined && { job }),
    ...(after !== undefined && { after }),
    ...(question !== undefined && { question }),
    ...(number !== undefined && { number }),
    ...sent,
  };
  log.append('operations.jsonl', operation);
  return operation;
}

type Outcome = Pick<Operation, 'outcome' | 'status' | 'job' | 'error'>;

async function send({ name, daemon, apiKey, method, path, body }: NewOperation): Promise<Outcome> {
  try {
    const response = await fetch(`${daemon.url}${path}`, {
      method,
      headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
      signal: AbortSignal.timeout(giveUpMs),
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    const { status } = response;
    if (!response.ok) return { outcome: status < 500 ? 'failed' : 'unknown', status, error: text.slice(0, 300) };
    return { outcome: 'ok', status, ...(name === 'enqueue' && { job: (JSON.parse(text) as { id: string }).id }) };
  } catch (error) {
    return { outcome: 'unknown', error: String(error) };
  }
}
