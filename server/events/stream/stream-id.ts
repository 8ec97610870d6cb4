// The id of an event in a live stream: everything that its reader has seen, in few characters, so that any daemon can
// resume after it. It is encrypted with the tenant's secret, because transaction ids count over all tenants and would
// reveal how busy the cluster is.
//
//   2.<sealed snapshots>[.<seq>]    the 2 is the version
//   <mark>.<snapshot>[.<snapshot>.<seq>]    the format of earlier versions: still read, no longer written
import { createHash } from 'node:crypto';
import { openText, sealText } from '../../kernel/sealed-text.ts';
import { formatSnapshot, parseSnapshot, type Snapshot } from '../log/position.ts';

export interface StreamPosition {
  /** All events visible in it have been sent. */
  seen: Snapshot;
  /**
   * Of the events visible in `until`, those up to this seq have been sent too: the reader was disconnected within a
   * batch.
   */
  batch?: { until: Snapshot; seq: bigint };
}

// 300 open transactions make about 1,000 characters. No valid id is longer.
const maxIdLength = 8000;

/** The tenant of the streams. */
export interface StreamOwner {
  id: string;
  secret: string;
}

const version = '2';
const purpose = 'stream-id';

/** The id of a reader that has been sent all events visible in `seen`. */
export function encodeStreamId({ secret }: StreamOwner, seen: Snapshot): string {
  return `${version}.${sealText(secret, purpose, encodeSnapshot(seen))}`;
}

/** The ids of the events of one batch: they differ only in the seq, which counts the tenant's own events. */
export function streamIdsWithin({ secret }: StreamOwner, seen: Snapshot, until: Snapshot): (seq: string) => string {
  const common = `${version}.${sealText(secret, purpose, `${encodeSnapshot(seen)}.${encodeSnapshot(until)}`)}`;
  return (seq) => `${common}.${BigInt(seq).toString(36)}`;
}

/** Returns undefined if the text is not an id of this tenant's streams. */
export function decodeStreamId(owner: StreamOwner, id: string): StreamPosition | undefined {
  if (id.length > maxIdLength) return undefined;
  const [mark, ...parts] = id.split('.');
  if (mark === markOf(owner.id)) return decodeParts(parts);
  const [sealed = '', ...seq] = parts;
  const snapshots = mark === version ? openText(owner.secret, purpose, sealed)?.split('.') : undefined;
  // Two snapshots need a seq, and one must have none, so that unencrypted text is not read as a snapshot.
  if (snapshots === undefined || seq.length !== snapshots.length - 1) return undefined;
  return decodeParts([...snapshots, ...seq]);
}

function decodeParts([first = '', second, seq, ...rest]: string[]): StreamPosition | undefined {
  const seen = decodeSnapshot(first);
  if (!seen || rest.length > 0) return undefined;
  if (second === undefined) return { seen };
  const until = decodeSnapshot(second);
  const number = decodeNumber(seq ?? '');
  return until && number !== undefined ? { seen, batch: { until, seq: number } } : undefined;
}

function markOf(tenantId: string): string {
  return createHash('sha256').update(tenantId).digest('base64url').slice(0, 6);
}

/** Encodes xmin, and the rest as distances from it. */
function encodeSnapshot({ xmin, xmax, xip }: Snapshot): string {
  const running = [...xip].map((xid) => (xid - xmin).toString(36));
  return [xmin.toString(36), (xmax - xmin).toString(36), ...running].join('~');
}

function decodeSnapshot(text: string): Snapshot | undefined {
  const [xmin, width, ...running] = text.split('~').map(decodeNumber);
  if (xmin === undefined || width === undefined) return undefined;
  const xip = new Set<bigint>();
  for (const offset of running) {
    if (offset === undefined) return undefined;
    xip.add(xmin + offset);
  }
  // Applies the parser's checks.
  return parseSnapshot(formatSnapshot({ xmin, xmax: xmin + width, xip }));
}

function decodeNumber(text: string): bigint | undefined {
  if (!/^[0-9a-z]{1,12}$/.test(text)) return undefined;
  let value = 0n;
  for (const char of text) value = value * 36n + BigInt(Number.parseInt(char, 36));
  return value;
}
