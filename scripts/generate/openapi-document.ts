// The OpenAPI document as the generators of client types read it: named schemas, and inline ones recognized as such.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../server/kernel/environment.ts';

export interface Schema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  enum?: (string | number | boolean | null)[];
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: Schema | boolean;
  items?: Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
}

interface Content {
  content?: Record<string, { schema: Schema }>;
}

interface Operation {
  parameters?: { name: string; in: string; required: boolean; description?: string; schema: Schema }[];
  requestBody?: Content;
  responses: Record<string, Content>;
}

interface OpenApi {
  components: { schemas: Record<string, Schema> };
  paths: Record<string, Record<string, Operation>>;
}

const document = JSON.parse(readFileSync(join(packageRoot(), 'test/snapshots/openapi.json'), 'utf8')) as OpenApi;

/** Schemas that clients get or send and that have no name of their own in the document. */
const named: Record<string, Schema> = {
  BatchAnswer: answer('/api/jobs/batch', 'post', 200),
  Counts: answer('/api/stats/jobs', 'get', 200),
  HoldCount: answer('/api/attention/count', 'get', 200),
  OperationPreview: answer('/api/operations', 'post', 200),
  StatsSnapshot: answer('/api/stats/snapshot', 'get', 200),
  Status: property(component('Job'), 'status'),
  TargetHold: property(component('Target'), 'hold'),
  Priority: property(component('Job'), 'priority'),
  UsageDay: found(property(answer('/api/stats/usage', 'get', 200), 'usage').items, 'UsageDay'),
};

const ofClients = [
  ...[
    'Attention',
    'Budget',
    'Event',
    'EventReceipt',
    'Job',
    'JobError',
    'JobFilter',
    'JobHold',
    'JobSummary',
    'Lane',
    'LaneJob',
    'Limit',
    'LogLine',
    'Operation',
    'Phase',
  ],
  ...['NewQuestionLink', 'Question', 'QuestionLink'],
  ...['RetryPolicy', 'Schedule', 'StatusCounts', 'Target', 'TargetLane', 'JobGraph', 'Why', 'Worker'],
];

/** What clients receive, by name. */
export const answers: Record<string, Schema> = Object.fromEntries(
  [...Object.entries(named), ...ofClients.map((name) => [name, component(name)] as const)].sort(([a], [b]) =>
    a < b ? -1 : 1,
  ),
);

/** What clients send, by name: bodies and queries, without what the client fills in. */
export const options: Record<string, Schema> = {
  BulkFilter: component('JobFilter'),
  EnqueueOptions: without(component('JobRequest'), ['type', 'payload', 'client_request_id']),
  EventListOptions: query('/api/events'),
  JobListOptions: query('/api/jobs'),
  LaneListOptions: query('/api/lanes'),
  LinkOptions: body('/api/questions/{id}/links', 'post'),
  NewBudget: component('BudgetSetting'),
  NewSchedule: body('/api/schedules', 'post'),
  NewLimit: component('LimitSetting'),
  QuestionListOptions: query('/api/questions'),
  RetryOptions: component('RetryPolicy'),
  AfterJobOptions: component('AfterJob'),
  ScheduleChanges: body('/api/schedules/{id}', 'patch'),
  ScheduledJob: component('ScheduledJob'),
  TargetListOptions: query('/api/targets'),
  UniqueOptions: component('UniqueRequest'),
};

/** The name of a schema: that of its reference, or of the named schema that it repeats. */
export function nameOf(schema: Schema): string | undefined {
  if (schema.$ref !== undefined) return schema.$ref.split('/').at(-1);
  return namesByShape.get(shapeOf(schema));
}

export function isNullable(schema: Schema): boolean {
  const types = [schema.type ?? []].flat();
  if (types.includes('null') || schema.enum?.includes(null)) return true;
  return schema.$ref !== undefined && isNullable(component(nameOf(schema) as string));
}

const namesByShape = new Map(
  [...Object.entries(answers), ...Object.entries(document.components.schemas)].map(([name, s]) => [shapeOf(s), name]),
);

/** A schema without its texts and without null: nullable copies of a named schema are written out in the document. */
function shapeOf(schema: Schema): string {
  const strip = (value: unknown, top: boolean): unknown => {
    if (Array.isArray(value)) return value.map((item) => strip(item, false));
    if (typeof value !== 'object' || value === null) return value;
    const entries = Object.entries(value).filter(([key]) => key !== 'description');
    return Object.fromEntries(
      entries.map(([key, inner]) => [
        key,
        top && (key === 'type' || key === 'enum') ? plain(inner) : strip(inner, false),
      ]),
    );
  };
  return JSON.stringify(strip(schema, true));
}

function plain(types: unknown): unknown {
  if (!Array.isArray(types)) return types;
  const others = types.filter((type) => type !== 'null' && type !== null);
  return others.length === 1 ? others[0] : others;
}

function component(name: string): Schema {
  return found(document.components.schemas[name], name);
}

function property(schema: Schema, name: string): Schema {
  return found(schema.properties?.[name], name);
}

function operation(path: string, method: string): Operation {
  return found(document.paths[path]?.[method], path);
}

function answer(path: string, method: string, status: number): Schema {
  return found(operation(path, method).responses[status]?.content?.['application/json']?.schema, path);
}

function body(path: string, method: string): Schema {
  return found(operation(path, method).requestBody?.content?.['application/json']?.schema, path);
}

/** The filters of a list; its pages are the client's business. */
function query(path: string): Schema {
  const fields = (operation(path, 'get').parameters ?? []).filter(({ in: where }) => where === 'query');
  const properties = fields.filter(({ name }) => name !== 'cursor').map(({ name, schema }) => [name, schema] as const);
  return { type: 'object', properties: Object.fromEntries(properties) };
}

function without(schema: Schema, names: string[]): Schema {
  const properties = Object.entries(schema.properties ?? {}).filter(([name]) => !names.includes(name));
  const required = schema.required?.filter((name) => !names.includes(name)) ?? [];
  return { ...schema, properties: Object.fromEntries(properties), required };
}

function found<T>(value: T | undefined, name: string): T {
  if (value === undefined) throw new Error(`the OpenAPI document lacks ${name}`);
  return value;
}
