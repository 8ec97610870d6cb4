// The table of one tenant that says which job waits for which others.
import { sql } from 'drizzle-orm';
import { check, index, integer, primaryKey, text, uuid } from 'drizzle-orm/pg-core';
import { tenantTemplate } from './columns.ts';

/**
 * One row per edge: `jobId` waits for `afterId`, because it was enqueued to run after it (`step` is empty), or because
 * the durable call `step` of its handler waits for this child. A job without dependencies has no row.
 */
export const dependencies = tenantTemplate.table(
  'dependencies',
  {
    jobId: uuid('job_id').notNull(),
    afterId: uuid('after_id').notNull(),
    step: text('step').notNull().default(''),
    /** The place of a child in the order of its call. */
    position: integer('position').notNull().default(0),
    /** What an end of `afterId` without success means. `stop`: the durable call ends with it. */
    onFailure: text('on_failure').notNull().default('hold'),
    /** How many children of the call may be unfinished at once; null: any number. */
    concurrency: integer('concurrency'),
    /** `gated`: a child that has not had its turn. `canceling`: its parent was canceled, and it is to be canceled. */
    state: text('state').notNull().default('open'),
  },
  (t) => [
    primaryKey({ columns: [t.jobId, t.afterId] }),
    check('dependencies_on_failure', sql`on_failure in ('hold','cancel','continue','stop')`),
    check('dependencies_state', sql`state in ('gated','open','canceling','succeeded','failed','canceled')`),
    // Which jobs wait for one that has ended.
    index('dependencies_after_id').on(t.afterId),
    // What a job still waits for, and which of its children come next.
    index('dependencies_unfinished').on(t.jobId, t.step, t.state, t.position).where(sql`state in ('gated','open')`),
    index('dependencies_canceling').on(t.jobId).where(sql`state = 'canceling'`),
  ],
);
