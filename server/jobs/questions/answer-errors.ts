// What is wrong with a field of an answer, for the person who filled in the form.
import type { z } from 'zod';

type Issue = z.core.$ZodRawIssue;

/** Undefined: the message of zod. */
export function answerError(issue: Issue): string | undefined {
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
  regex: 'does not have the expected form',
};

function boundError({ origin }: { origin?: unknown }, relation: string, bound: unknown): string {
  if (origin === 'string') return `must have ${relation} ${bound} characters`;
  if (origin === 'array') return `must have ${relation} ${bound} entries`;
  return `must be ${relation} ${bound}`;
}
