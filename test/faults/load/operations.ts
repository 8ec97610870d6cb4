// A client of the daemons' HTTP API that logs every operation with what it knows of its outcome: `ok` was acknowledged,
// `failed` was refused, `unknown` may or may not have happened.
import type { TestDaemon } from '../daemons.ts';
import { machineMs, type RunLog } from '../run-log.ts';

type OperationName =
  | 'enqueue'
  | 'batch'
  | 'cancel'
  | 'pause'
  | 'resume'
  | 'resolve'
  | 'foreignRead'
  | 'sendEvent'
  | 'answer'
  /** Of a resource with a name of its own. */
  | 'make'
  | 'change'
  | 'remove'
  /** Of what a tenant has one of. */
  | 'set';

/** What an operation is about. */
interface Subject {
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
  /** Of a resource: its kind, and its name, its id or the value that it gets. */
  kind?: string;
  resource?: string;
}

export interface Operation extends Subject {
  name: OperationName;
  tenant: string;
  daemon: string;
  startedAt: number;
  endedAt: number;
  outcome: 'ok' | 'failed' | 'unknown';
  status?: number;
  /** Of a batch. */
  jobs?: string[];
  error?: string;
}

export interface NewOperation extends Subject {
  name: OperationName;
  daemon: TestDaemon;
  tenant: string;
  /** None: the path is enough, as for the hosted form. */
  apiKey?: string;
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
  path: string;
  body?: unknown;
  /** Sent in place of a body. */
  form?: Record<string, string>;
  /** What of the answer is logged. */
  read?(answer: Answer): Partial<Operation>;
}

interface Answer {
  id?: string;
  key?: { id: string };
  url?: string;
  secrets?: string[];
  results?: { job?: { id: string } }[];
}

// A client does not wait longer; what happens after that is unknown to it.
const giveUpMs = 5_000;

export async function operate(log: RunLog, request: NewOperation): Promise<Operation & { answer?: Answer }> {
  const { name, tenant, daemon, read } = request;
  const startedAt = machineMs();
  const { answer, ...sent } = await send(request);
  const operation: Operation = {
    name,
    tenant,
    daemon: daemon.name,
    startedAt,
    endedAt: machineMs(),
    ...subjectOf(request),
    ...sent,
    ...(answer !== undefined && read?.(answer)),
  };
  log.append('operations.jsonl', operation);
  return { ...operation, ...(answer !== undefined && { answer }) };
}

function subjectOf({ job, target, key, after, question, number, kind, resource }: NewOperation): Subject {
  return JSON.parse(JSON.stringify({ job, target, key, after, question, number, kind, resource })) as Subject;
}

type Sent = Pick<Operation, 'outcome' | 'status' | 'error'> & { answer?: Answer };

async function send({ daemon, apiKey, method, path, body, form }: NewOperation): Promise<Sent> {
  try {
    const response = await fetch(`${daemon.url}${path}`, {
      method,
      headers: {
        ...(apiKey !== undefined && { authorization: `Bearer ${apiKey}` }),
        ...(form === undefined && { 'content-type': 'application/json' }),
      },
      signal: AbortSignal.timeout(giveUpMs),
      ...(body !== undefined && { body: JSON.stringify(body) }),
      ...(form !== undefined && { body: new URLSearchParams(form) }),
    });
    const text = await response.text();
    const { status } = response;
    if (!response.ok) return { outcome: status < 500 ? 'failed' : 'unknown', status, error: text.slice(0, 300) };
    const isJson = response.headers.get('content-type')?.includes('json') === true;
    return { outcome: 'ok', status, ...(isJson && { answer: JSON.parse(text) as Answer }) };
  } catch (error) {
    return { outcome: 'unknown', error: String(error) };
  }
}
