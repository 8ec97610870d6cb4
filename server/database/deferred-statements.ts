// Statements that are sent later, together: when all statements of a transaction are known, or the node they belong to.
import type { Reuse, TogetherStatement } from './connections/prepared-statements.ts';
import type { Queryable } from './sql.ts';

export interface DeferredStatement extends TogetherStatement {
  resolve(rows: unknown): void;
  reject(error: unknown): void;
}

export class DeferredStatements implements Queryable {
  readonly #waiting: DeferredStatement[] = [];
  #target: Queryable | undefined;
  /** The text of the first statement. */
  readonly first: Promise<string>;
  #hasFirst!: (text: string) => void;

  constructor() {
    this.first = new Promise((resolve) => {
      this.#hasFirst = resolve;
    });
  }

  query<R extends object = Record<string, unknown>>(text: string, values: unknown[] = [], reuse?: Reuse): Promise<R[]> {
    if (this.#target !== undefined) return this.#target.query<R>(text, values, reuse);
    return new Promise<R[]>((resolve, reject) => {
      this.#waiting.push({ text, values, reuse, resolve: resolve as DeferredStatement['resolve'], reject });
      this.#hasFirst(text);
    });
  }

  /** Sends the buffered statements in order; later ones are sent immediately. */
  sendTo(target: Queryable): void {
    this.#target = target;
    for (const { text, values, reuse, resolve, reject } of this.#waiting.splice(0)) {
      target.query(text, values, reuse).then(resolve, reject);
    }
  }

  /** About the number of bytes of all statements. */
  get size(): number {
    return this.#waiting.reduce((sum, { text, values }) => sum + text.length + sizeOf(values), 0);
  }

  /** Returns the statements, which the caller sends and answers. There can be no later ones. */
  take(): DeferredStatement[] {
    this.#target = committed;
    return this.#waiting.splice(0);
  }

  /** No connection was available. */
  fail(error: unknown): void {
    for (const { reject } of this.#waiting.splice(0)) reject(error);
  }
}

const committed: Queryable = {
  query: () => Promise.reject(new Error('a statement came after the COMMIT of its transaction')),
};

function sizeOf(value: unknown): number {
  if (typeof value === 'string' || Buffer.isBuffer(value)) return value.length;
  if (!Array.isArray(value)) return 8;
  return value.reduce((sum: number, each) => sum + 4 + sizeOf(each), 0);
}
