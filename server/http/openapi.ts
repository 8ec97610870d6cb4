// The OpenAPI 3.1 document, generated from the definitions that serve the requests.
import { OpenAPIRegistry, OpenApiGeneratorV31, type RouteConfig } from '@asteasolutions/zod-to-openapi';
import { z } from 'zod';
import { Pace } from '../kernel/clock.ts';
import { type ProblemCode, problem } from '../kernel/errors.ts';
import { answerExampleOf } from './answer-examples.ts';
import { parameterExampleOf, requestExamples } from './request-examples.ts';
import type { RouteDefinition, RouteGroup } from './route.ts';

const problemSchema = z
  .looseObject({
    type: z.string(),
    title: z.string(),
    status: z.int(),
    detail: z.string().describe('What went wrong, as text.'),
    code: z.string().describe('What went wrong, as a code for programs.'),
    instance: z.string(),
    request_id: z.string().describe('Identifies the request in the log.'),
  })
  .meta({ id: 'Problem', description: 'An error (RFC 9457). Some codes have further fields, e.g. `field`.' });

/**
 * Generates the document route by route, with turns of the event loop in between, because at once it would take longer
 * than a request may.
 */
export async function buildOpenApi(groups: readonly RouteGroup[], version: string) {
  const registry = new OpenAPIRegistry();
  registry.registerComponent('securitySchemes', 'bearer', { type: 'http', scheme: 'bearer' });
  registry.registerComponent('securitySchemes', 'apiKey', { type: 'apiKey', in: 'header', name: 'X-API-Key' });
  // The generator keeps the entries that it has generated, and generates those in this list.
  const definitions = [...registry.definitions];
  const generator = new OpenApiGeneratorV31(definitions);
  const describe = () => generator.generateDocument(header(version));
  const pace = new Pace();
  for (const group of groups) {
    for (const definition of group.definitions) {
      definitions.push({ type: 'route', route: entryOf(definition, group.tag) });
      describe();
      definitions.length = 0;
      await pace.pause();
    }
  }
  const document = describe();
  addParameterExamples(document.paths ?? {});
  return document;
}

function header(version: string) {
  return {
    openapi: '3.1.0',
    info: {
      title: 'Leasehold',
      version,
      description: 'A multi-tenant job daemon on Postgres.',
      license: { name: 'MIT', identifier: 'MIT' },
    },
    servers: [{ url: '/', description: 'The daemon that serves this document.' }],
    tags: Object.entries(tagTexts).map(([name, description]) => ({ name, description })),
  };
}

/** Adds an example to each required parameter. */
function addParameterExamples(paths: object): void {
  for (const [path, methods] of Object.entries(paths)) {
    for (const { parameters = [] } of Object.values<{ parameters?: ParameterEntry[] }>(methods)) {
      for (const parameter of parameters.filter((each) => each.required)) {
        parameter.example = parameterExampleOf(path, parameter.name);
      }
    }
  }
}

interface ParameterEntry {
  name: string;
  required?: boolean;
  example?: string;
}

/** Every tag, in the order in which the explorer shows them. */
const tagTexts: Record<string, string> = {
  Jobs: 'Enqueue jobs, read them, act on them.',
  Targets: 'Targets and their lanes: pause, resume, canary, labels.',
  Questions: 'What handlers ask people: list, answer, links to hosted forms.',
  Operations: 'One action on many jobs.',
  Schedules: 'Jobs by the clock.',
  Events: 'The log of what happened, as pages and as a live stream.',
  Webhooks: 'Deliveries of events to addresses.',
  Statistics: 'Counts, time series, workers, and what needs a person.',
  Scheduler: 'Remote workers: submit, claim, lease, report.',
  Limits: 'Rate and concurrency of jobs.',
  Budgets: 'What jobs may use of any unit.',
  Keys: "The tenant's API keys.",
  Administration: "Tenants, keys and daemons; with an operator's key.",
  Dashboard: 'Signing in to the dashboard.',
  Service: 'Is the daemon alive, is it ready, what does it measure.',
};

function entryOf(definition: RouteDefinition, tag: string): RouteConfig {
  const { access, params, query, body } = definition;
  const operationId = operationIdOf(definition.method, definition.path);
  return {
    operationId,
    method: definition.method,
    path: definition.path,
    tags: [tag],
    summary: definition.summary,
    ...(definition.description ? { description: definition.description } : {}),
    ...(access === 'public' ? { security: [] } : { security: [{ bearer: [] }, { apiKey: [] }], 'x-access': access }),
    ...(definition.allowSuspended ? { 'x-allowed-while-suspended': true } : {}),
    request: {
      ...(params ? { params } : {}),
      ...(query ? { query } : {}),
      ...(body
        ? {
            body: {
              required: !definition.bodyOptional,
              content: { 'application/json': { schema: body, ...exampleOf(operationId) } },
            },
          }
        : {}),
    },
    responses: { ...answersOf(definition, operationId), ...problemsOf(definition) },
  };
}

function exampleOf(operationId: string): { example?: unknown } {
  const example = requestExamples[operationId];
  return example === undefined ? {} : { example };
}

function answersOf(definition: RouteDefinition, operationId: string): RouteConfig['responses'] {
  const example = answerExampleOf(operationId);
  return Object.fromEntries(
    Object.entries(definition.answers).map(([status, schema]) => [
      status,
      {
        description: definition.summary,
        ...(schema
          ? {
              content: {
                [definition.contentType ?? 'application/json']: {
                  schema,
                  ...(String(example?.status) === status ? { example: example?.body } : {}),
                },
              },
            }
          : {}),
      },
    ]),
  );
}

function problemsOf(definition: RouteDefinition): RouteConfig['responses'] {
  const codes = new Set<ProblemCode>(definition.problems ?? []);
  if (definition.params || definition.query || definition.body) codes.add('INVALID_FIELD');
  if (definition.body)
    for (const code of ['INVALID_JSON', 'PAYLOAD_TOO_LARGE', 'UNSUPPORTED_MEDIA_TYPE'] as const) codes.add(code);
  if (definition.access !== 'public') for (const code of ['UNAUTHORIZED', 'FORBIDDEN'] as const) codes.add(code);
  // Every path refuses other methods.
  if (codes.size === 0) codes.add('METHOD_NOT_ALLOWED');
  const byStatus = new Map<number, ProblemCode[]>();
  for (const code of codes) {
    const { httpStatus } = problem(code, '');
    byStatus.set(httpStatus, [...(byStatus.get(httpStatus) ?? []), code]);
  }
  return Object.fromEntries(
    [...byStatus].map(([status, names]) => [
      String(status),
      { description: names.join(', '), content: { 'application/problem+json': { schema: problemSchema } } },
    ]),
  );
}

// The `operationId` of a route, from its method and path: `listJobs`, `getJob`, `resumeTargetJob`. Generated clients
// name their methods after it, so a path keeps its id as long as it exists.

const collections = new Set([
  'jobs',
  'targets',
  'keys',
  'tenants',
  'workers',
  'events',
  'deliveries',
  'operations',
  'schedules',
  'lanes',
  'queues',
  'zombies',
  'logs',
  'settings',
  'questions',
  'links',
]);

/** Names for paths whose last segment is neither a collection nor a verb. */
const exceptions: Record<string, string> = {
  'post /api/scheduler/jobs/{job_id}/status': 'reportSchedulerJobStatus',
  'post /api/scheduler/lease/{lease_id}/heartbeat': 'renewSchedulerLease',
  'post /api/events/{name}': 'sendEvent',
  'post /api/session': 'signIn',
  'delete /api/session': 'signOut',
  'get /openapi.json': 'getOpenApi',
};

/** @internal Exported for its test. */
export function operationIdOf(method: string, path: string): string {
  const exception = exceptions[`${method} ${path}`];
  if (exception !== undefined) return exception;
  const segments = path.split('/').filter((segment) => segment !== '' && segment !== 'api');
  const isParameter = (n: number) => segments[n]?.startsWith('{') ?? false;
  const names = segments.flatMap((segment, n) =>
    isParameter(n) ? [] : [isParameter(n + 1) ? singular(segment) : segment],
  );
  const last = names.at(-1) ?? '';
  const endsInParameter = isParameter(segments.length - 1);
  switch (method) {
    case 'get':
      return camel(!endsInParameter && collections.has(last) ? 'list' : 'get', ...names);
    case 'put':
      return camel('replace', ...names);
    case 'patch':
      return camel('update', ...names);
    case 'delete':
      return camel('delete', ...names);
    default:
      return collections.has(last)
        ? camel('create', ...names.slice(0, -1), singular(last))
        : camel(last, ...names.slice(0, -1));
  }
}

function singular(name: string): string {
  return name.endsWith('ies') ? `${name.slice(0, -3)}y` : name.replace(/s$/, '');
}

function camel(verb: string, ...names: string[]): string {
  return verb + names.map((name) => name.charAt(0).toUpperCase() + name.slice(1)).join('');
}
