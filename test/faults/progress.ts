// Whether the work that is left after the faults goes on. How long it takes depends on the work and on the machine.

// Beyond lease + grace + two sweeps, for a machine that is busy with other work.
export const stalledMs = 90_000;
// Lanes of a hundred jobs end one after the other. Only a run that goes on for ever reaches it.
export const maxDrainMs = 1_200_000;

export interface UnfinishedJob {
  id: string;
  /** Changes with every change of the job. */
  state: string;
  /** It runs, or could start at once. */
  isFirst: boolean;
}

/** Fails if something that could go on has not changed for long, or if nothing at all has. */
export class Progress {
  readonly #startedAt = performance.now();
  /** A job that becomes the first of its lane has changed. */
  #jobs = new Map<string, { state: string; isFirst: boolean; since: number }>();

  check(left: readonly UnfinishedJob[]): void {
    const now = performance.now();
    const known = this.#jobs;
    this.#jobs = new Map(
      left.map(({ id, state, isFirst }) => {
        const before = known.get(id);
        const isSame = before?.state === state && before.isFirst === isFirst;
        return [id, isSame ? before : { state, isFirst, since: now }];
      }),
    );
    const isStalled = ({ id }: UnfinishedJob) => now - (this.#jobs.get(id)?.since ?? now) > stalledMs;
    const [stalled] = left.filter((job) => job.isFirst && isStalled(job));
    if (stalled !== undefined) throw new Error(`job ${stalled.id} has not changed for ${stalledMs} ms`);
    if (left.every(isStalled)) throw new Error(`none of ${left.length} jobs has changed for ${stalledMs} ms`);
    if (now - this.#startedAt > maxDrainMs) throw new Error(`${left.length} jobs are left after ${maxDrainMs} ms`);
  }
}
