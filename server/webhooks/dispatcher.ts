// The service that sends webhooks: goes round the tenants, makes deliveries of new events, sends
// what is due. A receiver that hangs keeps its tenant's share of the slots busy and nobody else's.
import type { LookupFunction } from 'node:net';
import type { Database } from '../database/database.ts';
import type { ReportSetAside } from '../events/log/set-aside.ts';
import { errorMessage } from '../kernel/errors.ts';
import type { Logger } from '../kernel/logger.ts';
import type { Service } from '../kernel/service.ts';
import { PerTenantTask, type TaskResult } from '../tenants/per-tenant-task.ts';
import type { TenantRegistry } from '../tenants/registry.ts';
import type { Tenant } from '../tenants/tenant.ts';
import { ensureWebhookSecrets } from '../tenants/webhook-secrets.ts';
import { type ClaimedDelivery, claimDeliveries } from './claim-deliveries.ts';
import { type DeliveryOutcome, finishDelivery } from './finish-delivery.ts';
import { createDeliveries } from './outbox.ts';
import { WebhookSender } from './sender.ts';
import { signHeaders } from './sign.ts';

export interface DispatcherOptions {
  /** Jobs come first: see TenantRounds. */
  underLoad?: () => boolean;
  db: Database;
  registry: TenantRegistry;
  logger: Logger;
  workerId: string;
  allowPrivate: boolean;
  concurrency: number;
  timeoutMs: number;
  maxAttempts: number;
  observe?: (tenant: Tenant, outcome: DeliveryOutcome, seconds: number) => void;
  onSetAside?: ReportSetAside | undefined;
  /** Time between rounds; an idle tenant is visited less often unless it is woken. */
  everyMs?: number;
  /** Somebody wakes it where there is something to send: see TenantRounds. */
  watched?: boolean;
  lookup?: LookupFunction;
}

// Steps of the follower in one visit: beyond it other tenants come first.
const maxSteps = 10;

export class WebhookDispatcher implements Service {
  readonly name = 'webhooks';
  #options: DispatcherOptions;
  #task: PerTenantTask;
  #sender: WebhookSender;
  #inFlight = new Map<Promise<void>, string>();

  constructor(options: DispatcherOptions) {
    this.#options = options;
    const { registry, logger, everyMs = 1000 } = options;
    this.#sender = new WebhookSender(options);
    this.#task = new PerTenantTask({
      name: this.name,
      registry,
      logger,
      runForTenant: (tenant, signal) => this.#dispatchTenant(tenant, signal),
      busyMs: everyMs,
      idleMs: everyMs * 60,
      concurrency: 4,
      watched: options.watched ?? false,
      ...(options.underLoad && { underLoad: options.underLoad }),
    });
  }

  async start(): Promise<void> {
    await this.#task.start();
  }

  /** Takes nothing new, and awaits what is under way: at most the timeout of one delivery. */
  async stop(): Promise<void> {
    await this.#task.stop();
    await Promise.allSettled(this.#inFlight.keys());
    await this.#sender.close();
  }

  /** Something happened at this tenant. */
  wake(slug: string): void {
    this.#task.wake(slug);
  }

  /** One round over all tenants; resolves when what it took is sent. For tests and for scripts. */
  async runOnce(): Promise<void> {
    await this.#task.runOnce(true);
    await Promise.allSettled(this.#inFlight.keys());
  }

  async #dispatchTenant(tenant: Tenant, signal: AbortSignal): Promise<TaskResult> {
    const { db } = this.#options;
    let handled = 0;
    let complete = false;
    let busy = false;
    for (let step = 0; step < maxSteps && !complete && !signal.aborted; step++) {
      const followed = await createDeliveries(db, tenant);
      handled += followed.handled;
      this.#options.onSetAside?.(tenant, followed.setAside);
      ({ complete, busy } = followed);
    }
    const limit = this.#freeSlots(tenant);
    const taken = limit === 0 || signal.aborted ? [] : await this.#take(tenant, limit);
    for (const delivery of taken) this.#begin(tenant, delivery);
    if (!complete) return 'more';
    if (handled > 0 || taken.length > 0 || limit === 0) return 'some';
    return busy ? 'none' : 'rest';
  }

  /** A quarter of all slots for one tenant, at least one. */
  #freeSlots(tenant: Tenant): number {
    const { concurrency } = this.#options;
    const mine = [...this.#inFlight.values()].filter((slug) => slug === tenant.slug).length;
    const share = Math.max(1, Math.ceil(concurrency / 4));
    return Math.max(0, Math.min(concurrency - this.#inFlight.size, share - mine));
  }

  // The lock outlasts the try: connecting and answering each end with the timeout.
  #take(tenant: Tenant, limit: number): Promise<ClaimedDelivery[]> {
    const lockSeconds = (this.#options.timeoutMs / 1000) * 2 + 30;
    return claimDeliveries(this.#options.db, tenant.schema, { limit, lockSeconds });
  }

  #begin(tenant: Tenant, delivery: ClaimedDelivery): void {
    const sending = this.#deliver(tenant, delivery).finally(() => {
      this.#inFlight.delete(sending);
      // There may be more of this tenant's, and now there is a slot.
      this.#task.wake(tenant.slug);
      this.#task.runNow();
    });
    this.#inFlight.set(sending, tenant.slug);
  }

  /** Never rejects. */
  async #deliver(tenant: Tenant, delivery: ClaimedDelivery): Promise<void> {
    const { db, logger, maxAttempts, workerId, observe } = this.#options;
    const fields = {
      tenant: tenant.slug,
      jobId: delivery.job_id,
      deliveryId: delivery.id,
      attempts: delivery.attempts,
    };
    try {
      const secrets =
        tenant.webhookSecrets.length > 0 ? tenant.webhookSecrets : await ensureWebhookSecrets(db, tenant.id);
      const began = performance.now();
      const headers = signHeaders(secrets, delivery.id, delivery.body, new Date(delivery.claimed_at));
      const result = await this.#sender.send(delivery.url, headers, delivery.body);
      const seconds = (performance.now() - began) / 1000;
      const outcome = await finishDelivery(db, tenant.schema, delivery, result, {
        maxAttempts,
        actor: `webhooks:${workerId}`,
      });
      if (outcome === undefined) return;
      observe?.(tenant, outcome, seconds);
      if (outcome === 'failed' || outcome === 'disabled')
        logger.warn({ ...fields, result }, 'webhook was not delivered');
    } catch (error) {
      // Its lock runs out and somebody tries again: a receiver may hear of one event twice.
      logger.warn({ ...fields, reason: errorMessage(error) }, 'outcome of a webhook could not be stored');
    }
  }
}
