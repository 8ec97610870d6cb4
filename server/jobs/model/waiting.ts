// What a WAITING job waits for: the column `waiting`. It has no slot, lease or connection meanwhile.

export const waitKinds = ['sleep', 'question'] as const;
export type WaitKind = (typeof waitKinds)[number];

export interface Waiting {
  kind: WaitKind;
  /** The durable call that waits. */
  step: string;
  /** When the job wakes by itself. */
  until: string;
  /** The question that a person has to answer. */
  question?: string | undefined;
  /** The job left its lane until it wakes. */
  lane?: 'released' | undefined;
}

/** Durable calls that others end, with an answer for example. If one has ended before the job waits, the job wakes at once. */
export interface AwaitedCalls {
  steps: readonly string[];
  /** The end of the first wait of the run, whatever it waits for. */
  until: string;
}

/** `sleeps until 2026-01-02T03:04:05Z`, for people. */
export function describeWaiting({ kind, step, until, question }: Waiting): string {
  if (kind === 'question')
    return `waits for a person to answer question ${question}, asked in "${step}", until ${until}`;
  return `sleeps in "${step}" until ${until}`;
}
