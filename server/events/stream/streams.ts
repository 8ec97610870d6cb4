// All live streams of this daemon, with one feed per tenant that has readers. A stream that was cut off resumes after
// its last id without a gap, on any daemon. Streams are closed first at shutdown.
import type { ServerResponse } from 'node:http';
import type { Database } from '../../database/database.ts';
import { problem } from '../../kernel/errors.ts';
import type { Logger } from '../../kernel/logger.ts';
import { Quota } from '../../kernel/quota.ts';
import { Interval, type Service } from '../../kernel/service.ts';
import { parseSnapshot } from '../log/position.ts';
import { Backlog } from './backlog.ts';
import { Feed, type FeedTenant, StreamReader } from './feed.ts';
import {
  type ClosedReason,
  closedFrame,
  pingFrame,
  type ResetReason,
  resetFrame,
  type StreamFilter,
  snapshotFrame,
} from './frames.ts';
import { decodeStreamId, encodeStreamId, type StreamPosition } from './stream-id.ts';

export interface StreamOptions {
  maxReaders: number;
  maxReadersPerTenant?: number;
  maxReadersPerKey?: number;
  bufferBytes: number;
  pollMs: number;
  pingMs: number;
  /** The database's time, for pings. */
  now(): Date;
}

export interface StreamRequest {
  tenant: FeedTenant;
  keyId: string;
  filter: StreamFilter;
  lastEventId: string | undefined;
  /** The current state, and the pg_snapshot in which it was read. Sent first to a reader without a valid id. */
  readSnapshot?: (() => Promise<{ snapshot: string; content: object }>) | undefined;
  /** Checked periodically. A stream whose key was revoked ends. */
  stillAllowed(): Promise<boolean>;
}

interface Channel {
  feed: Feed;
  backlog: Backlog;
  ready: Promise<void>;
  /** The number of streams that are open or about to be. */
  users: number;
}

const headers = {
  'Content-Type': 'text/event-stream; charset=utf-8',
  'Cache-Control': 'no-store, no-transform',
  Connection: 'keep-alive',
  // A proxy that buffers responses would delay the events.
  'X-Accel-Buffering': 'no',
};

export class EventStreams implements Service {
  readonly name = 'event-streams';
  #db: Pick<Database, 'forTenant'>;
  #logger: Logger;
  #options: StreamOptions;
  #channels = new Map<string, Channel>();
  #checks: Interval;
  #closed = false;
  #quota: Quota;

  constructor(db: Pick<Database, 'forTenant'>, options: StreamOptions, logger: Logger) {
    this.#db = db;
    this.#options = options;
    this.#quota = new Quota('live streams', {
      total: options.maxReaders,
      perTenant: options.maxReadersPerTenant,
      perKey: options.maxReadersPerKey,
    });
    this.#logger = logger;
    this.#checks = new Interval('event-stream-keys', options.pingMs, () => this.#checkKeys(), logger);
  }

  get readerCount(): number {
    return this.#quota.used;
  }

  async start(): Promise<void> {
    await this.#checks.start();
  }

  async stop(): Promise<void> {
    await this.closeAll();
  }

  /** Keys were revoked. Their streams end now, not at the next ping. */
  checkKeys(): void {
    this.#checks.wake();
  }

  /** A signal that events of this tenant, or of any, were committed. Cheap for tenants without readers. */
  wake(slug?: string): void {
    if (slug !== undefined) this.#channels.get(slug)?.feed.wake();
    else for (const { feed } of this.#channels.values()) feed.wake();
  }

  /** Ends every stream and accepts no new ones; readers reconnect to another daemon with their last id. */
  async closeAll(): Promise<void> {
    this.#closed = true;
    const channels = [...this.#channels.values()];
    for (const { feed } of channels) this.#endAll(feed.readers, 'shutdown');
    await this.#checks.stop();
    await Promise.all(channels.map(({ feed }) => feed.stop()));
  }

  async open(response: ServerResponse, request: StreamRequest): Promise<void> {
    if (this.#closed) throw problem('DRAINING', 'The server is shutting down; try again.');
    if (response.destroyed) return;
    const leave = this.#quota.enter({ tenantId: request.tenant.id, keyId: request.keyId });
    const channel = this.#channelOf(request.tenant);
    const reader = new StreamReader(response, {
      filter: request.filter,
      bufferBytes: this.#options.bufferBytes,
      stallMs: 2 * this.#options.pingMs,
      stillAllowed: request.stillAllowed,
    });
    channel.users++;
    response.once('close', () => {
      leave();
      this.#releaseChannel(request.tenant.slug, channel, reader);
    });
    try {
      await channel.ready;
      await this.#start(channel, reader, response, request);
    } catch (error) {
      if (!response.headersSent) throw error;
      this.#logger.warn({ err: error, tenant: request.tenant.slug }, 'live stream could not be started');
      reader.drop();
    }
  }

  async #start(
    channel: Channel,
    reader: StreamReader,
    response: ServerResponse,
    request: StreamRequest,
  ): Promise<void> {
    const { feed, backlog } = channel;
    let from = request.lastEventId === undefined ? undefined : decodeStreamId(request.tenant, request.lastEventId);
    let reset: ResetReason | undefined;
    if (request.lastEventId !== undefined) reset = from ? await backlog.checkResumable(from) : 'unknown_id';
    if (reset) from = undefined;
    const present = from ? undefined : await request.readSnapshot?.();
    if (response.destroyed || this.#closed) return void response.destroy();
    response.writeHead(200, headers);
    response.flushHeaders();
    response.socket?.setNoDelay(true);
    const now = encodeStreamId(request.tenant, feed.seen.snapshot);
    if (reset) reader.send(resetFrame(reset, now));
    if (present) {
      from = { seen: parseSnapshot(present.snapshot) ?? feed.seen.snapshot };
      reader.send(snapshotFrame(encodeStreamId(request.tenant, from.seen), present.content));
      // The feed must have reached the snapshot, otherwise it would send events that the snapshot already contains.
      await backlog.checkResumable(from);
    }
    feed.readers.add(reader);
    if (from) await this.#catchUp(channel, reader, from);
    // Shows that the stream is open, and has an id, so that a reader can resume before its first event.
    else reader.send(pingFrame(now, this.#options.now().toISOString()));
    reader.goLive();
  }

  async #catchUp({ feed, backlog }: Channel, reader: StreamReader, from: StreamPosition): Promise<void> {
    const until = feed.seen.snapshot;
    const missed = await backlog.read(from, until, reader.filter);
    if (missed) for (const batch of missed) reader.send(batch.select(reader.filter));
    else reader.send(resetFrame('too_far_behind', encodeStreamId(feed.tenant, until)));
  }

  #channelOf(tenant: FeedTenant): Channel {
    const known = this.#channels.get(tenant.slug);
    if (known) return known;
    const db = this.#db.forTenant(tenant.schema);
    const feed = new Feed(db, tenant, this.#options, this.#logger);
    const channel = { feed, backlog: new Backlog(db, feed), ready: feed.start(), users: 0 };
    // The next reader tries again.
    channel.ready.catch(() => this.#channels.delete(tenant.slug));
    this.#channels.set(tenant.slug, channel);
    return channel;
  }

  #releaseChannel(slug: string, channel: Channel, reader: StreamReader): void {
    channel.feed.readers.delete(reader);
    if (--channel.users > 0) return;
    if (this.#channels.get(slug) === channel) this.#channels.delete(slug);
    void channel.feed.stop();
  }

  /** Checks every reader; the result for a key comes from the verifier's short cache. */
  async #checkKeys(): Promise<void> {
    for (const { feed } of this.#channels.values()) {
      for (const reader of [...feed.readers]) {
        const allowed = await reader.stillAllowed().catch(() => true);
        if (!allowed) this.#endAll([reader], 'key_revoked');
      }
    }
  }

  #endAll(readers: Iterable<StreamReader>, reason: ClosedReason): void {
    for (const reader of [...readers]) reader.end(closedFrame(reason));
  }
}
