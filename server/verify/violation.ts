// The findings of verification. A violation names the row and describes the problem.

export interface Violation {
  kind:
    | 'event_missing'
    | 'event_altered'
    | 'event_inserted'
    | 'event_unreadable'
    | 'event_future'
    | 'seal_missing'
    | 'seal_altered'
    | 'prune_unrecorded'
    | 'prune_too_early'
    | 'position_moved'
    | 'job_altered'
    | 'job_history'
    | 'job_state'
    | 'job_missing'
    | 'job_lease'
    | 'job_waiting'
    | 'question_open'
    | 'lane_overlap'
    | 'lane_order';
  /** `xid:seq`. */
  event?: string;
  seal?: string;
  jobId?: string;
  targetId?: string;
  detail: string;
}

/** Collects violations up to a limit: a badly damaged log must not fill the memory. */
export class Violations {
  readonly list: Violation[] = [];
  count = 0;
  #max: number;

  constructor(max = 1000) {
    this.#max = max;
  }

  add(violation: Violation): void {
    this.count++;
    if (this.list.length < this.#max) this.list.push(violation);
  }
}
