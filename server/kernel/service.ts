// A background task of a daemon. `start` and `stop` are idempotent; `stop` awaits what is under way.

export interface Service {
  readonly name: string;
  start(): Promise<void>;
  stop(): Promise<void>;
}
