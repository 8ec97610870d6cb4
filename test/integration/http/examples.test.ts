// Sends the example request of every operation of the API's document to a daemon: each is accepted as it stands, apart from
// the ids in it. The answers and the examples of answers fit their schemas and have the same fields. To write the examples
// from real answers again: LEASEHOLD_WRITE_EXAMPLES=1 npx vitest run test/integration/http/examples.test.ts
import { writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { expect, it } from 'vitest';
import { type AnswerExample, answerExampleOf } from '../../../server/http/answer-examples.ts';
import { requestExamples } from '../../../server/http/request-examples.ts';
import { packageRoot } from '../../../server/kernel/environment.ts';
import { scopes } from '../../../server/tenants/api-keys/key.ts';
import { createApiKey } from '../../../server/tenants/api-keys/key-store.ts';
import { fastSettings, useDaemon } from '../../support/daemon/daemon.ts';
import { toExample } from '../../support/http/example-answers.ts';
import { exampleRequests, type Send } from '../../support/http/example-requests.ts';
import type { Body, JsonSchema } from '../../support/http/operations.ts';
import { useTenant } from '../../support/postgres/database.ts';

const context = useTenant();
const running = useDaemon(context);
const admin = fastSettings.ADMIN_API_KEY as string;

interface Content {
  schema?: JsonSchema;
  example?: unknown;
}
interface Operation {
  operationId: string;
  parameters?: { name: string; in: string; required?: boolean; example?: unknown }[];
  requestBody?: { content: Record<string, Content> };
  responses: Record<string, { content?: Record<string, Content> }>;
}
interface Document {
  paths: Record<string, Record<string, Operation>>;
  components: { schemas: Record<string, JsonSchema> };
}

/** Answers without a body, or whose body is a document or stream of its own. */
const withoutExample = ['getOpenApi'];

it('accepts the example request of every operation, and its answer matches the example', async () => {
  const { url } = running.daemon;
  const { text: key } = await createApiKey(context.db, {
    tenantId: context.tenant.id,
    name: 'all',
    scopes: [...scopes],
  });
  const send: Send = async (method, path, body, by = key) => {
    const abort = new AbortController();
    const response = await fetch(url + path, {
      method,
      signal: abort.signal,
      headers: { authorization: `Bearer ${by}`, 'content-type': 'application/json', origin: url },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const type = response.headers.get('content-type') ?? '';
    if (type.startsWith('text/event-stream')) {
      const first = await response.body?.getReader().read();
      abort.abort();
      return { status: response.status, body: {}, text: new TextDecoder().decode(first?.value) };
    }
    const text = await response.text();
    return { status: response.status, body: type.includes('json') ? (JSON.parse(text) as Body) : {}, text };
  };
  await send('PATCH', `/api/admin/tenants/${context.tenant.slug}`, { settings: { remote_job_types: ['*'] } }, admin);
  const requestFor = exampleRequests({ send, admin, key, slug: context.tenant.slug });
  const document = (await (await fetch(`${url}/openapi.json`)).json()) as Document;
  const fits = checker(document);
  const replacements = [
    { text: url, by: 'https://jobs.example.com' },
    { text: context.tenant.slug, by: 'acme' },
    { text: hostname(), by: 'host-1' },
  ];
  const sent: string[] = [];
  const written: Record<string, AnswerExample> = {};
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const id = operation.operationId;
      for (const parameter of operation.parameters ?? []) {
        if (parameter.required) expect(parameter.example, `${id} ${parameter.name}`).toBeDefined();
      }
      const example = operation.requestBody?.content['application/json']?.example as Body | undefined;
      if (operation.requestBody !== undefined) {
        expect(example, `${id} has no example`).toBeDefined();
        sent.push(id);
      }
      const ready = await requestFor(id, path);
      const by = path.startsWith('/api/admin') ? admin : key;
      const body = example && { ...example, ...ready.replace };
      const answer = await send(method.toUpperCase(), ready.path, body, by);
      const status = String(answer.status);
      expect(Object.keys(operation.responses), `${id} ${answer.text}`).toContain(status);
      expect(answer.status, `${id} ${answer.text}`).toBeLessThan(300);
      const content = Object.entries(operation.responses[status]?.content ?? {})[0];
      if (content === undefined || withoutExample.includes(id)) continue;
      const [type, { schema }] = content;
      const real = type === 'application/json' ? answer.body : answer.text;
      if (process.env.LEASEHOLD_WRITE_EXAMPLES) {
        written[id] = { status: answer.status, body: toExample(real, replacements) };
        continue;
      }
      expect(fits(schema, real), `${id} ${answer.text}`).toEqual([]);
      const shown = operation.responses[String(answerExampleOf(id)?.status)]?.content?.[type]?.example;
      expect(shown, `${id} has no example of an answer`).toBeDefined();
      expect(fits(schema, shown), `${id} ${JSON.stringify(shown)}`).toEqual([]);
      if (type === 'application/json')
        expect(Object.keys(shown as object).sort(), id).toEqual(Object.keys(real).sort());
    }
  }
  expect(sent.sort()).toEqual(Object.keys(requestExamples).sort());
  if (process.env.LEASEHOLD_WRITE_EXAMPLES) writeExamples(written);
});

function checker({ components }: Document) {
  const ajv = new Ajv2020({ strict: false, validateFormats: false, allErrors: true });
  ajv.addSchema({ $id: 'api', components });
  return (schema: JsonSchema | undefined, value: unknown): unknown[] => {
    const text = JSON.stringify(schema ?? {}).replaceAll('"#/components/', '"api#/components/');
    const validate = ajv.compile(JSON.parse(text) as JsonSchema);
    return validate(value) ? [] : (validate.errors ?? []).map((error) => `${error.instancePath} ${error.message}`);
  };
}

/** An operation of a target's job answers as that of a job does: it has no example of its own. */
function writeExamples(written: Record<string, AnswerExample>): void {
  const own = Object.entries(written).filter(
    ([id]) => !(id.includes('TargetJob') && id.replace('Target', '') in written),
  );
  const lines = own.map(([id, { status, body }]) => `  ${id}: { status: ${status}, body: ${JSON.stringify(body)} },`);
  const head = `// Real answers of a daemon, by operationId, with ids and times replaced: the examples of the API's document. Written and checked
// by test/integration/http/examples.test.ts.

export interface AnswerExample {
  status: number;
  body: unknown;
}

/** An operation of a target's job answers as that of a job does. */
export function answerExampleOf(operationId: string): AnswerExample | undefined {
  return answerExamples[operationId] ?? answerExamples[operationId.replace('TargetJob', 'Job')];
}

const answerExamples: Record<string, AnswerExample> = {`;
  writeFileSync(join(packageRoot(), 'server/http/answer-examples.ts'), `${[head, ...lines, '};'].join('\n')}\n`);
}
