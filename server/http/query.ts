// Schemas for query fields, which arrive as text, and for the pages of lists.
import { z } from 'zod';
import { cursorField } from './cursor.ts';

export function integerQuery(min: number, max: number) {
  return z
    .string()
    .regex(/^-?\d{1,15}$/, 'must be a whole number')
    .transform(Number)
    .pipe(z.int().min(min).max(max))
    .meta({ type: 'integer', minimum: min, maximum: max });
}

export function booleanQuery() {
  return z
    .enum(['true', 'false'])
    .transform((text) => text === 'true')
    .meta({ type: 'boolean' });
}

/** Spread into a list's query schema: `z.strictObject({ ...pageQuery(), status: … })`. */
export function pageQuery(options: { defaultLimit?: number; maxLimit?: number } = {}) {
  const { defaultLimit = 50, maxLimit = 200 } = options;
  return {
    limit: integerQuery(1, maxLimit)
      .optional()
      .transform((limit) => limit ?? defaultLimit)
      .meta({ type: 'integer', minimum: 1, maximum: maxLimit, default: defaultLimit }),
    cursor: cursorField().optional().describe('`next_cursor` of the page before.'),
  };
}
