// Stores an event from outside, once for each id that its sender gives. deliver-events.ts delivers it to the jobs that
// wait for it.
import { createHash } from 'node:crypto';
import { z } from 'zod';
import type { Queryable } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { receivedMessage, sendNotification } from '../../database/notifications/notifications.ts';
import { statement, tenant } from '../../database/sql.ts';
import { insertEvents, withoutJob } from '../../events/log/record.ts';
import { problem } from '../../kernel/errors.ts';
import { nameField, pathNameField } from '../../kernel/fields.ts';
import { newId } from '../../kernel/ids.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { checkDocument } from '../enqueue/enqueue-limits.ts';

// Each job that waits for the event stores a copy.
const dataLimitBytes = 65_536;

export const eventName = pathNameField();
export const sentEvent = z.strictObject({
  data: z.unknown().optional().describe('Any JSON value of up to 64 KB; nothing counts as {}.'),
  id: nameField().optional().describe('Your name for this event: with the same id it is received once.'),
});

export interface SentEvent {
  name: string;
  data?: unknown;
  id?: string | undefined;
}

/** Equal for every repetition. */
export interface Receipt {
  id: string;
  name: string;
  receivedAt: string;
}

interface Received extends Receipt {
  /** An event with this name and id was received before. */
  replayed: boolean;
}

const insertStatement = statement(`
  with given as (
    select :id::uuid as id, :name::text as name, :eventId::text as event_id, :data::jsonb as data, clock_timestamp() as at
  ),
  created as (
    insert into ${tenant}.received_events (id, name, event_id, data, received_at)
    select id, name, event_id, data, at
      from given
    on conflict (name, event_id) where event_id is not null do nothing
    returning id, name, event_id, received_at
  ),
  recorded as (
    ${insertEvents(tenant, {
      ...withoutJob,
      source: 'created',
      type: `'event.received'`,
      targetId: 'null',
      actor: ':actor',
      data: `jsonb_build_object('name', name, 'id', coalesce(event_id, id::text))`,
    })}
  )
  select coalesce(event_id, id::text) as id, name, received_at as "receivedAt" from created`);

const knownStatement = statement(`
  select event_id as id, name, received_at as "receivedAt", data = :data::jsonb as same
    from ${tenant}.received_events
   where name = :name
     and event_id = :eventId`);

/** Only stores the event. The caller wakes the daemons, with the signals after its commit or with `notifyReceived`. */
export async function receiveEvent(db: Queryable, schema: Schema, event: SentEvent, actor: string): Promise<Received> {
  const { name } = event;
  const given = event.data ?? {};
  checkDocument(given, 'data', dataLimitBytes);
  const data = JSON.stringify(given);
  const values = { id: newId(), name, eventId: event.id ?? null, data, actor };
  const [created] = await insertStatement.query<Receipt>(db, schema, values);
  if (created !== undefined) return { ...created, replayed: false };
  const [known] = await knownStatement.query<Receipt & { same: boolean }>(db, schema, {
    name,
    eventId: event.id,
    data,
  });
  if (known === undefined) throw problem('CONFLICT', 'The event with this id was just deleted; send it again.');
  const { same, ...receipt } = known;
  if (same) return { ...receipt, replayed: true };
  throw problem('IDEMPOTENCY_CONFLICT', 'This id was used for an event with other data; use a new id.', {
    field: 'id',
  });
}

/** Notifies of an event that a transaction of the caller stores; sent with its commit. */
export async function notifyReceived(tx: Queryable, { slug }: Pick<Tenant, 'slug'>): Promise<void> {
  await sendNotification(tx, receivedMessage(slug));
}

// Keys by which an event finds the jobs that wait for it, without reading the jobs that wait for other events of the
// same name. A wait has one key, of one value that it requires. An event has the keys of all its values.

/** The key of a wait that accepts any data, or requires no single value. */
const anyKey = '';

/** Returns the key of the longest required value, which is likely to be the rarest. */
export function matchKeyOf(match: object | null): string {
  let rarest = anyKey;
  let length = 0;
  for (const leaf of leavesOf(match ?? {}, [])) {
    if (leaf.text.length <= length) continue;
    length = leaf.text.length;
    rarest = keyOf(leaf);
  }
  return rarest;
}

/** Returns the keys of all waits that this data may satisfy. Postgres decides whether it does: `data @> match`. */
export function keysOf(data: unknown): string[] {
  const keys = new Set([anyKey]);
  for (const leaf of leavesOf(data, [])) keys.add(keyOf(leaf));
  return [...keys];
}

interface Leaf {
  path: string;
  text: string;
}

/** Elements of a list have no position: a list contains another if it has its elements, in any order. */
function* leavesOf(value: unknown, path: readonly (string | null)[]): Generator<Leaf> {
  if (Array.isArray(value)) {
    for (const element of value) yield* leavesOf(element, [...path, null]);
  } else if (typeof value === 'object' && value !== null) {
    for (const [name, inner] of Object.entries(value)) yield* leavesOf(inner, [...path, name]);
  } else yield { path: JSON.stringify(path), text: JSON.stringify(value) };
}

function keyOf({ path, text }: Leaf): string {
  return createHash('sha256').update(`${path}=${text}`).digest('base64url').slice(0, 16);
}
