// What every background thing is: started once, stopped once, both idempotent, stop awaits.

export interface Service {
  readonly name: string;
  start(): Promise<void>;
  stop(): Promise<void>;
}
