// Size limits for payloads, results and other JSON values of a job, for every route and worker.
import { problem } from '../../kernel/errors.ts';

export const payloadLimitBytes = 1_048_576;
/** Constraints, metrics, the details of an error: notes beside a job, shown in lists and events. */
export const noteLimitBytes = 32_768;

/** Throws PAYLOAD_TOO_LARGE, which names the field and the limit. */
export function checkDocument(value: unknown, field: string, limitBytes = payloadLimitBytes): void {
  if (value === undefined || value === null) return;
  const bytes = Buffer.byteLength(JSON.stringify(value));
  if (bytes <= limitBytes) return;
  const detail = `${field} has ${bytes} bytes as JSON; at most ${limitBytes} are allowed.`;
  throw problem('PAYLOAD_TOO_LARGE', detail, { field, limit: limitBytes });
}
