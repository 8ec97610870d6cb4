// The event that a listener gets. Imports nothing, because the declarations of the package use these types.

export interface LeaseholdEvent {
  /** The number in the log of the tenant. */
  id: string;
  tenant: string;
  type: string;
  at: string;
  jobId: string | null;
  targetId: string | null;
  from: string | null;
  to: string | null;
  attempt: number | null;
  actor: string;
  data: Record<string, unknown> | null;
}

export type EventListener = (event: LeaseholdEvent) => void | Promise<void>;
