// Lists: `for await (const job of client.jobs.list(…))` reads page after page; `firstPage()` reads one.
import { type CallOptions, type Transport, toQuery } from './transport.ts';

export interface Page<T> {
  items: T[];
  /** As `cursor`, it continues after this page; null on the last page. */
  nextCursor: string | null;
}

export class List<T> implements AsyncIterable<T> {
  readonly #read: (cursor: string | undefined) => Promise<Page<T>>;

  constructor(read: (cursor: string | undefined) => Promise<Page<T>>) {
    this.#read = read;
  }

  /** Reads one page, for callers that store the cursor. */
  page(cursor?: string): Promise<Page<T>> {
    return this.#read(cursor);
  }

  async *pages(): AsyncGenerator<T[], void, undefined> {
    let cursor: string | undefined;
    do {
      const page = await this.#read(cursor);
      if (page.items.length > 0) yield page.items;
      cursor = page.nextCursor ?? undefined;
    } while (cursor !== undefined);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for await (const items of this.pages()) yield* items;
  }

  /** Returns the first items, at most `limit`. */
  async take(limit: number): Promise<T[]> {
    const items: T[] = [];
    for await (const page of this.pages()) {
      items.push(...page.slice(0, limit - items.length));
      if (items.length >= limit) break;
    }
    return items;
  }
}

/** Creates the list at a path, whose answers have the items under `name`. */
export function listAt<T>(
  transport: Transport,
  path: string,
  name: string,
  filter: object,
  call: CallOptions,
): List<T> {
  return new List(async (cursor) => {
    const { body } = await transport.request<Record<string, unknown>>('GET', path + toQuery({ ...filter, cursor }), {
      ...call,
      repeatable: true,
    });
    return { items: body[name] as T[], nextCursor: (body.next_cursor as string | null | undefined) ?? null };
  });
}
