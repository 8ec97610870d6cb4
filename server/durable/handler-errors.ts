// The errors with which a handler classifies a failure. They are recognized by a registered symbol, not by class,
// because a handler module may load its own copy of this file (TypeScript loader, worker thread).

const disposition = Symbol.for('leasehold.disposition');
type Disposition = 'recoverable' | 'fatal' | 'skipPhase';

export interface HandlerErrorOptions {
  /** Upper case with underscores, e.g. `RATE_LIMITED`; retry policies and people read it. */
  code?: string;
  /** JSON that is kept with the job's error. */
  details?: Record<string, unknown>;
  cause?: unknown;
}

class HandlerError extends Error {
  readonly code?: string;
  readonly details?: Record<string, unknown>;
  constructor(message: string, options: HandlerErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    if (options.code !== undefined) this.code = options.code;
    if (options.details !== undefined) this.details = options.details;
  }
}

/** May succeed next time: the job is retried while it has attempts left. */
export class Recoverable extends HandlerError {
  override name = 'Recoverable';
  static {
    mark(Recoverable, 'recoverable');
  }
}

/** Not retried, whatever the retry policy says. */
export class Fatal extends HandlerError {
  override name = 'Fatal';
  static {
    mark(Fatal, 'fatal');
  }
}

/** Thrown in a phase: the phase is skipped, and the job continues with the next one. */
export class SkipPhase extends HandlerError {
  override name = 'SkipPhase';
  static {
    mark(SkipPhase, 'skipPhase');
  }
}

// On the prototype and not as a field, because declarations of the package cannot name a symbol that is created at run
// time.
function mark(error: { prototype: object }, value: Disposition): void {
  Object.defineProperty(error.prototype, disposition, { value });
}

export function dispositionOf(error: unknown): Disposition | undefined {
  if (typeof error !== 'object' || error === null) return undefined;
  return (error as { [disposition]?: Disposition })[disposition];
}
