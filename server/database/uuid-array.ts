// A list of uuids in Postgres's binary form: reading a thousand of them as text costs the server more
// than finding their rows.

const uuidOid = 2950;
const uuidBytes = 16;

/** A value for a `$1::uuid[]` parameter. */
export function encodeUuids(ids: readonly string[]): Buffer {
  const buffer = Buffer.alloc(ids.length === 0 ? 12 : 20 + ids.length * (4 + uuidBytes));
  buffer.writeInt32BE(ids.length === 0 ? 0 : 1, 0);
  buffer.writeInt32BE(uuidOid, 8);
  if (ids.length === 0) return buffer;
  buffer.writeInt32BE(ids.length, 12);
  buffer.writeInt32BE(1, 16);
  let offset = 20;
  for (const id of ids) {
    buffer.writeInt32BE(uuidBytes, offset);
    const digits = id.replaceAll('-', '');
    // What is too long for the buffer's end would be cut off unseen.
    const written = digits.length === uuidBytes * 2 ? buffer.write(digits, offset + 4, 'hex') : 0;
    if (written !== uuidBytes) throw new TypeError(`not a uuid: ${id}`);
    offset += 4 + uuidBytes;
  }
  return buffer;
}
