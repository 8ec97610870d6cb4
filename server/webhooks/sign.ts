// Signatures after the Standard Webhooks specification: one for each secret, so that a receiver
// that knows only the old or only the new one accepts the message while the secrets change.
import { Webhook } from 'standardwebhooks';

/** `at` is the database's time: receivers refuse a timestamp that is minutes off, and an application clock may be. */
export function signHeaders(secrets: readonly string[], id: string, body: string, at: Date): Record<string, string> {
  return {
    'webhook-id': id,
    'webhook-timestamp': String(Math.floor(at.getTime() / 1000)),
    'webhook-signature': secrets.map((secret) => new Webhook(secret).sign(id, at, body)).join(' '),
  };
}
