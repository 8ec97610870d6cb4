// What a WAITING job waits for: the column `waiting`. It has no slot, lease or connection meanwhile.

export const waitKinds = ['sleep'] as const;
type WaitKind = (typeof waitKinds)[number];

export interface Waiting {
  kind: WaitKind;
  /** The durable call that waits. */
  step: string;
  /** When the job wakes by itself. */
  until: string;
  /** The job left its lane until it wakes. */
  lane?: 'released' | undefined;
}

/** `sleeps until 2026-01-02T03:04:05Z`, for people. */
export function describeWaiting({ step, until }: Waiting): string {
  return `sleeps in "${step}" until ${until}`;
}
