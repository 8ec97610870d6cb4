// Opaque cursors: where a list goes on, bound to the list (and tenant) they were made for.
import { createHash } from 'node:crypto';
import { problem } from '../kernel/errors.ts';

/** `list` names the list and whose it is, e.g. `jobs:${tenant.id}`: a cursor of another one is refused. */
export function encodeCursor(list: string, position: readonly string[]): string {
  return Buffer.from(JSON.stringify([mark(list), ...position])).toString('base64url');
}

export function decodeCursor(list: string, cursor: string, length: number): string[] {
  const parts = parse(cursor);
  if (!parts || parts.length !== length + 1 || parts[0] !== mark(list)) {
    throw problem('INVALID_CURSOR', 'The cursor does not belong to this list.', { field: 'query.cursor' });
  }
  return parts.slice(1);
}

function parse(cursor: string): string[] | undefined {
  try {
    const value: unknown = JSON.parse(Buffer.from(cursor, 'base64url').toString());
    return Array.isArray(value) && value.every((part) => typeof part === 'string') ? value : undefined;
  } catch {
    return undefined;
  }
}

function mark(list: string): string {
  return createHash('sha256').update(list).digest('base64url').slice(0, 8);
}
