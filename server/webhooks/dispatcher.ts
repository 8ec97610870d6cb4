// Sends webhooks: creates deliveries for a tenant's new events, claims due deliveries and sends them in the background.
// A receiver that hangs uses up its own tenant's share of the slots, not those of others.
import type { LookupFunction } from 'node:net';
import { Webhook } from 'standardwebhooks';
import type { Database } from '../database/database.ts';
import type { ReportSetAside } from '../events/log/set-aside.ts';
import { errorMessage } from '../kernel/errors.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { ensureWebhookSecrets } from '../tenants/webhook-secrets.ts';
import { type ClaimedDelivery, claimDeliveries, type DeliveryOutcome, finishDelivery } from './delivery-attempt.ts';
import { createDeliveries } from './outbox.ts';
import { WebhookSender } from './sender.ts';

export interface DispatcherOptions {
  db: Database;
  logger: Logger;
  workerId: string;
  allowPrivate: boolean;
  concurrency: number;
  timeoutMs: number;
  maxAttempts: number;
  observe(tenant: Tenant, outcome: DeliveryOutcome, seconds: number): void;
  onSetAside: ReportSetAside;
  /** A delivery of this tenant has ended, so a slot is free for the next one. */
  onSlotFree(slug: string): void;
  /** Replaces the system's resolver. */
  lookup?: LookupFunction;
}

export class WebhookDispatcher {
  #options: DispatcherOptions;
  #sender: WebhookSender;
  #inFlight = new Map<Promise<void>, string>();

  constructor(options: DispatcherOptions) {
    this.#options = options;
    this.#sender = new WebhookSender(options);
  }

  /** One step: resolves when deliveries are claimed, not when they are sent. */
  async runForTenant(tenant: Tenant, { signal }: { signal: AbortSignal }): Promise<'more' | 'some' | 'busy' | 'idle'> {
    const { handled, complete, busy, setAside } = await createDeliveries(
      this.#options.db.forTenant(tenant.schema),
      tenant,
    );
    this.#options.onSetAside(tenant, setAside);
    const limit = this.#freeSlots(tenant);
    const claimed = limit === 0 || signal.aborted ? [] : await this.#claim(tenant, limit);
    for (const delivery of claimed) this.#send(tenant, delivery);
    if (!complete) return 'more';
    if (handled > 0 || claimed.length > 0 || limit === 0) return 'some';
    return busy ? 'busy' : 'idle';
  }

  /** Resolves when no delivery is in flight, after at most the timeout of one delivery. */
  async drain(): Promise<void> {
    await Promise.allSettled(this.#inFlight.keys());
  }

  async stop(): Promise<void> {
    await this.drain();
    await this.#sender.close();
  }

  /** A tenant may use a quarter of all slots, at least one. */
  #freeSlots(tenant: Tenant): number {
    const { concurrency } = this.#options;
    const ownCount = [...this.#inFlight.values()].filter((slug) => slug === tenant.slug).length;
    const share = Math.max(1, Math.ceil(concurrency / 4));
    return Math.max(0, Math.min(concurrency - this.#inFlight.size, share - ownCount));
  }

  #claim(tenant: Tenant, limit: number): Promise<ClaimedDelivery[]> {
    // The lock lasts longer than the attempt, because connecting and answering may each take the whole timeout.
    const lockSeconds = (this.#options.timeoutMs / 1000) * 2 + 30;
    return claimDeliveries(this.#options.db.forTenant(tenant.schema), tenant.schema, { limit, lockSeconds });
  }

  #send(tenant: Tenant, delivery: ClaimedDelivery): void {
    const sending = this.#deliver(tenant, delivery).finally(() => {
      this.#inFlight.delete(sending);
      this.#options.onSlotFree(tenant.slug);
    });
    this.#inFlight.set(sending, tenant.slug);
  }

  /** Never rejects. */
  async #deliver(tenant: Tenant, delivery: ClaimedDelivery): Promise<void> {
    const { logger, maxAttempts, workerId, observe } = this.#options;
    const db = this.#options.db.forTenant(tenant.schema);
    const fields = {
      tenant: tenant.slug,
      jobId: delivery.job_id,
      deliveryId: delivery.id,
      attempts: delivery.attempts,
    };
    try {
      const secrets =
        tenant.webhookSecrets.length > 0 ? tenant.webhookSecrets : await ensureWebhookSecrets(db, tenant.id);
      const startedAt = performance.now();
      const result = await this.#sender.send(delivery.url, signHeaders(secrets, delivery), delivery.body);
      const seconds = (performance.now() - startedAt) / 1000;
      const outcome = await finishDelivery(db, tenant.schema, delivery, result, {
        maxAttempts,
        actor: `webhooks:${workerId}`,
      });
      if (outcome === undefined) return;
      observe(tenant, outcome, seconds);
      if (outcome === 'failed' || outcome === 'disabled') {
        logger.warn({ ...fields, result }, 'webhook was not delivered');
      }
    } catch (error) {
      // The delivery is sent again when its lock expires, so a receiver may get one event twice.
      logger.warn({ ...fields, reason: errorMessage(error) }, 'outcome of a webhook could not be stored');
    }
  }
}

/**
 * Headers of the Standard Webhooks specification, with one signature per secret: while secrets are rotated, a receiver
 * that knows only one of them accepts the message. The timestamp is the database's time: receivers refuse one that is
 * minutes off, as an application clock may be.
 */
function signHeaders(secrets: readonly string[], { id, body, claimed_at }: ClaimedDelivery): Record<string, string> {
  const at = new Date(claimed_at);
  return {
    'webhook-id': id,
    'webhook-timestamp': String(Math.floor(at.getTime() / 1000)),
    'webhook-signature': secrets.map((secret) => new Webhook(secret).sign(id, at, body)).join(' '),
  };
}
