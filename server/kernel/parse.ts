// Parses input with a schema, or throws one INVALID_FIELD problem that names every invalid field.
import type { z } from 'zod';
import { type Problem, problem } from './errors.ts';
import { formatPath } from './json.ts';

export interface FieldError {
  field: string;
  message: string;
}

/** `where`: prefix of the field names, e.g. `query` or `settings`. */
export function parseFields<S extends z.ZodType>(schema: S, value: unknown, where = ''): z.output<S> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  throw invalidFields(fieldErrors(result.error.issues, where));
}

export function invalidFields(errors: FieldError[]): Problem {
  const detail = errors.map((e) => `${e.field || 'the body'}: ${e.message}`).join('; ');
  return problem('INVALID_FIELD', detail, { field: errors[0]?.field ?? '', errors });
}

// A hostile body can cause thousands of issues; the first few are enough to correct it.
const maxErrors = 20;

function fieldErrors(issues: readonly z.core.$ZodIssue[], where: string): FieldError[] {
  const errors: FieldError[] = [];
  for (const issue of issues) {
    const path = where === '' ? issue.path : [where, ...issue.path];
    if (issue.code === 'unrecognized_keys') {
      for (const key of issue.keys) errors.push({ field: formatPath([...path, key]), message: 'is not a known field' });
    } else {
      errors.push({ field: formatPath(path), message: issue.message });
    }
    if (errors.length >= maxErrors) break;
  }
  return errors.slice(0, maxErrors);
}
