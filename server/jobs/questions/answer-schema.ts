// The schema of an answer, as JSON Schema: made from the zod schema of a handler, or sent by a remote worker. Every
// answer is checked against it before the handler gets it.
import { z } from 'zod';
import { type FieldError, invalidFields, parseFields } from '../../kernel/fields.ts';
import { findJsonViolation } from '../../kernel/json/json-violations.ts';
import { countComparisons, countSchemas } from './answer-cost.ts';
import type { AnswerSchema, AskedQuestion, GivenAnswer, QuestionAction, QuestionRequest } from './question-request.ts';

// A form with a hundred fields is smaller.
const maxSchemaBytes = 65_536;
const maxContextBytes = 262_144;
/** Each is compiled for every answer. */
const maxSchemas = 500;
/** Takes half of the 50 ms for which others may have to wait: a comparison that fails takes up to 4 µs. */
const maxComparisons = 8000;

/** Keywords that clients of the API may not use: a pattern could run for long, a reference for ever. */
const refusedKeywords = new Set(['pattern', 'patternProperties', '$ref', '$dynamicRef', '$defs', 'definitions']);

/** Formats that are checked without a pattern. */
const checkedFormats = new Set(['email', 'date', 'ipv4', 'ipv6', 'duration']);

/** Converts the zod schema of a handler. Throws if JSON Schema cannot express it. */
export function toAnswerSchema(schema: z.ZodType): AnswerSchema {
  const {
    $schema: _,
    '~standard': __,
    ...made
  } = z.toJSONSchema(schema, {
    io: 'input',
    // The format says the same, in words that people know.
    override: ({ jsonSchema }) => {
      const { format } = jsonSchema;
      if (format !== undefined && checkedFormats.has(format)) delete jsonSchema.pattern;
    },
  }) as Record<string, unknown>;
  return made.additionalProperties === undefined ? { ...made, additionalProperties: false } : made;
}

const noFields: AnswerSchema = { type: 'object', properties: {}, additionalProperties: false };

/** Returns the question after checks: its schema is usable, and its actions and default answer fit it. */
export function checkQuestion(request: QuestionRequest, { trusted }: { trusted: boolean }): AskedQuestion {
  const schema = request.schema ?? noFields;
  const errors = [...schemaErrors(schema, trusted), ...sizeErrors(request), ...actionErrors(request)];
  if (errors.length > 0) throw invalidFields(errors);
  const checked = { ...request, schema };
  if (request.schema === undefined && request.actions.length === 0) {
    throw invalidFields([{ field: 'schema', message: 'a question needs a schema, actions, or both' }]);
  }
  if (request.on_timeout === 'fail') return checked;
  return { ...checked, on_timeout: checkAnswer(checked, request.on_timeout, 'on_timeout') };
}

/** Returns the answer to store, with the fields of its action. `where` prefixes the names of invalid fields. */
export function checkAnswer(
  { schema, actions }: { schema: AnswerSchema; actions: readonly QuestionAction[] },
  given: { answer?: Record<string, unknown> | undefined; action?: string | undefined },
  where = '',
): GivenAnswer {
  const name = (field: string) => (where === '' ? field : `${where}.${field}`);
  const action = actions.find((one) => one.name === given.action);
  if (action === undefined && (actions.length > 0 || given.action !== undefined)) {
    const allowed = actions.map((one) => one.name).join(', ');
    const message = actions.length === 0 ? 'this question has no actions' : `must be one of: ${allowed}`;
    throw invalidFields([{ field: name('action'), message }]);
  }
  // Without a prototype, so that a field named `constructor` may be left out.
  const whole: Record<string, unknown> = Object.assign(Object.create(null), given.answer, action?.answer);
  if (countComparisons(schema, whole, maxComparisons) > maxComparisons) {
    throw invalidFields([{ field: name('answer'), message: 'has too many values to be compared with its schema' }]);
  }
  const answer = parseFields(compile(schema), whole, name('answer'), answerError);
  return { answer: answer as Record<string, unknown>, ...(action !== undefined && { action: action.name }) };
}

function compile(schema: AnswerSchema): z.ZodType {
  return z.fromJSONSchema(schema as Parameters<typeof z.fromJSONSchema>[0]);
}

function schemaErrors(schema: AnswerSchema, trusted: boolean): FieldError[] {
  if (schema.type !== 'object') return [{ field: 'schema.type', message: 'must be object' }];
  if (JSON.stringify(schema).length > maxSchemaBytes) {
    return [{ field: 'schema', message: `must have at most ${maxSchemaBytes} bytes` }];
  }
  if (!trusted && countSchemas(schema, maxSchemas) > maxSchemas) {
    return [{ field: 'schema', message: `must have at most ${maxSchemas} fields, items and alternatives` }];
  }
  const refused = trusted ? undefined : findKeyword(schema, 'schema');
  if (refused !== undefined) return [{ field: refused, message: 'is not supported here' }];
  try {
    compile(schema);
    return [];
  } catch (error) {
    return [{ field: 'schema', message: `cannot be used: ${error instanceof Error ? error.message : String(error)}` }];
  }
}

/** Properties may have any name, so the names below `properties` are not keywords. */
function findKeyword(value: unknown, path: string, areNames = false): string | undefined {
  if (typeof value !== 'object' || value === null) return undefined;
  for (const [key, inner] of Object.entries(value)) {
    if (!areNames && !Array.isArray(value) && refusedKeywords.has(key)) return `${path}.${key}`;
    const found = findKeyword(inner, `${path}.${key}`, !areNames && key === 'properties');
    if (found !== undefined) return found;
  }
  return undefined;
}

function sizeErrors({ context }: QuestionRequest): FieldError[] {
  const text = JSON.stringify(context ?? null);
  if (text.length > maxContextBytes)
    return [{ field: 'context', message: `must have at most ${maxContextBytes} bytes` }];
  const violation = findJsonViolation(context);
  return violation === undefined ? [] : [{ field: `context.${violation.field}`, message: violation.message }];
}

function actionErrors({ actions, schema }: QuestionRequest): FieldError[] {
  const errors: FieldError[] = [];
  const names = new Set<string>();
  const properties = (schema?.properties ?? {}) as Record<string, unknown>;
  if (actions.length > 0 && Object.hasOwn(properties, 'action')) {
    errors.push({ field: 'schema.properties.action', message: 'is the name of the chosen action' });
  }
  actions.forEach(({ name, answer }, n) => {
    if (names.has(name)) errors.push({ field: `actions[${n}].name`, message: 'is used twice' });
    names.add(name);
    for (const field of Object.keys(answer ?? {})) {
      if (!Object.hasOwn(properties, field))
        errors.push({ field: `actions[${n}].answer.${field}`, message: 'is not in the schema' });
    }
  });
  return errors;
}

type Issue = z.core.$ZodRawIssue;

/** What is wrong with a field, for the person who filled in the form. Undefined means the message of zod. */
function answerError(issue: Issue): string | undefined {
  switch (issue.code) {
    case 'too_big':
      return boundError(issue, issue.inclusive === false ? 'less than' : 'at most', issue.maximum);
    case 'too_small':
      return boundError(issue, issue.inclusive === false ? 'more than' : 'at least', issue.minimum);
    case 'invalid_type':
      return issue.input === undefined ? 'is required' : expected[issue.expected];
    case 'invalid_value':
      return issue.input === undefined ? 'is required' : `must be one of: ${issue.values.map(String).join(', ')}`;
    case 'invalid_format':
      return formats[issue.format];
    case 'invalid_union':
      return issue.input === undefined ? 'is required' : 'has a value that does not fit';
    case 'not_multiple_of':
      return `must be a multiple of ${issue.divisor}`;
    default:
      return undefined;
  }
}

const expected: Partial<Record<string, string>> = {
  string: 'must be text',
  number: 'must be a number',
  int: 'must be a whole number',
  boolean: 'must be yes or no',
  array: 'must be a list',
};

const formats: Partial<Record<string, string>> = {
  email: 'must be an email address',
  date: 'must be a date, such as 2026-01-31',
  datetime: 'must be a time, such as 2026-01-31T12:00:00Z',
  url: 'must be an address, such as https://example.com',
  uuid: 'must be a UUID',
  regex: 'does not have the expected form',
};

function boundError({ origin }: { origin?: unknown }, relation: string, bound: unknown): string {
  if (origin === 'string') return `must have ${relation} ${bound} characters`;
  if (origin === 'array') return `must have ${relation} ${bound} entries`;
  return `must be ${relation} ${bound}`;
}
