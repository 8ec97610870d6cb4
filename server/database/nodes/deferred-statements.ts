// Buffers the statements of a transaction until its connection is chosen. The first statement determines the connection.
import type { Reuse } from '../connections/prepared-statements.ts';

interface Target {
  query<R extends object>(text: string, values?: unknown[], reuse?: Reuse): Promise<R[]>;
}

interface DeferredStatement {
  text: string;
  values: unknown[] | undefined;
  reuse: Reuse | undefined;
  resolve(rows: unknown): void;
  reject(error: unknown): void;
}

export class DeferredStatements {
  readonly #waiting: DeferredStatement[] = [];
  #target: Target | undefined;
  /** The text of the first statement. */
  readonly first: Promise<string>;
  #hasFirst!: (text: string) => void;

  constructor() {
    this.first = new Promise((resolve) => {
      this.#hasFirst = resolve;
    });
  }

  query<R extends object = Record<string, unknown>>(text: string, values?: unknown[], reuse?: Reuse): Promise<R[]> {
    if (this.#target !== undefined) return this.#target.query<R>(text, values, reuse);
    return new Promise<R[]>((resolve, reject) => {
      this.#waiting.push({ text, values, reuse, resolve: resolve as DeferredStatement['resolve'], reject });
      this.#hasFirst(text);
    });
  }

  /** Sends the buffered statements in order; later ones are sent immediately. */
  sendTo(target: Target): void {
    this.#target = target;
    for (const { text, values, reuse, resolve, reject } of this.#waiting.splice(0)) {
      target.query(text, values, reuse).then(resolve, reject);
    }
  }

  /** No connection was available. */
  fail(error: unknown): void {
    for (const { reject } of this.#waiting.splice(0)) reject(error);
  }
}
