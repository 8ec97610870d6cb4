// One slot per lease. A request for a lease names the job and the worker, so if the claim of one slot expires while its
// request is repeated, and another slot claims the job, both get the same lease.

// More than can be granted while an answer is in flight.
const maxKnown = 10_000;

export class LeasesOfSlots {
  #known = new Set<string>();

  /** False if another slot has, or had, this lease. */
  take(leaseId: string): boolean {
    if (this.#known.has(leaseId)) return false;
    for (const oldest of this.#known) {
      if (this.#known.size < maxKnown) break;
      this.#known.delete(oldest);
    }
    this.#known.add(leaseId);
    return true;
  }
}
