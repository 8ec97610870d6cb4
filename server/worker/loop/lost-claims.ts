// Claims whose answers never came. They may have taken jobs, which nobody keeps alive: those are given
// back as soon as the database answers again, before their lease would cost them an attempt.
import { type Database, isConnectionError } from '../../database/database.ts';
import type { Schema } from '../../database/identifiers.ts';
import { releaseClaim } from '../../jobs/claim/release-claim.ts';

export class LostClaims {
  readonly #db: Database;
  readonly #schema: Schema;
  readonly #actor: string;
  #leaseIds: string[] = [];

  constructor(db: Database, schema: Schema, actor: string) {
    this.#db = db;
    this.#schema = schema;
    this.#actor = actor;
  }

  /** Only a cut connection leaves it open whether the claim happened. */
  add(leaseId: string, error: unknown): void {
    if (isConnectionError(error)) this.#leaseIds.push(leaseId);
  }

  /** Returns how many jobs went back. */
  async release(): Promise<number> {
    let jobs = 0;
    for (const leaseId of [...this.#leaseIds]) {
      jobs += await releaseClaim(this.#db, this.#schema, { leaseId, kind: 'local', actor: this.#actor });
      this.#leaseIds = this.#leaseIds.filter((id) => id !== leaseId);
    }
    return jobs;
  }
}
