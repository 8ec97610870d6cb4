// A finding of the checker: the broken invariant, a description, and the line of the run's logs that shows it.

export interface Violation {
  /** `I1` to `I12` of docs/guarantees.md, or the name of a check of `leasehold verify`. */
  invariant: string;
  text: string;
  /** `file:line` below the run's directory. */
  place: string;
}

export function describeViolation({ invariant, text, place }: Violation): string {
  return `${invariant} ${text} (${place})`;
}
