// The tables of one tenant that hold questions to people, and the links that open one of them without a key.
import { sql } from 'drizzle-orm';
import { check, index, integer, json, jsonb, text, uniqueIndex, uuid } from 'drizzle-orm/pg-core';
import { at, bytea, tenantTemplate } from './columns.ts';

/** A question that a job asked with the durable call `ask`. Deleted with the job. */
export const questions = tenantTemplate.table(
  'questions',
  {
    id: uuid('id').primaryKey(),
    jobId: uuid('job_id').notNull(),
    /** The durable call: the row of `phases` that waits for the answer. */
    step: text('step').notNull(),
    targetId: text('target_id'),
    title: text('title').notNull(),
    // Not jsonb, which would lose the order of fields in forms.
    context: json('context'),
    /** JSON Schema of the answer. */
    schema: json('schema').notNull(),
    /** `[{ name, label, style, answer }]`; see jobs/questions/question.ts. */
    actions: jsonb('actions').notNull().default([]),
    assignees: text('assignees').array().notNull().default(sql`'{}'::text[]`),
    status: text('status').notNull().default('open'),
    askedAt: at('asked_at').notNull().defaultNow(),
    expiresAt: at('expires_at').notNull(),
    /** The `{ answer, action }` that applies if nobody answers in time. If null, the call fails. */
    onTimeout: jsonb('on_timeout'),
    /** The remaining reminders, in order. */
    remindAt: at('remind_at').array().notNull().default(sql`'{}'::timestamptz[]`),
    reminders: integer('reminders').notNull().default(0),
    escalateAt: at('escalate_at'),
    escalateTo: text('escalate_to').array(),
    escalatedAt: at('escalated_at'),
    answer: jsonb('answer'),
    action: text('action'),
    /** A person's name, a key or a link. */
    answeredBy: text('answered_by'),
    /** The time at which it was answered, expired or canceled. */
    closedAt: at('closed_at'),
  },
  (t) => [
    check('questions_status', sql`status in ('open','answered','expired','canceled')`),
    check('questions_closed', sql`(status = 'open') = (closed_at is null)`),
    // One question per durable call, so that a run after a crash finds it.
    uniqueIndex('questions_job_id_step_open').on(t.jobId, t.step).where(sql`status = 'open'`),
    index('questions_job_id').on(t.jobId),
    // Open questions, newest first.
    index('questions_open_id').on(t.id).where(sql`status = 'open'`),
    index('questions_assignees').using('gin', t.assignees).where(sql`status = 'open'`),
    index('questions_target_id_id').on(t.targetId, t.id).where(sql`target_id is not null`),
  ],
);

/** A link opens the hosted form of one question. Only the SHA-256 of its token is kept. */
export const questionLinks = tenantTemplate.table(
  'question_links',
  {
    id: uuid('id').primaryKey(),
    questionId: uuid('question_id').notNull(),
    hash: bytea('hash').notNull(),
    /** The recipient of the link; an answer through it counts as theirs. */
    recipient: text('recipient'),
    createdBy: text('created_by').notNull(),
    createdAt: at('created_at').notNull().defaultNow(),
    expiresAt: at('expires_at').notNull(),
    usedAt: at('used_at'),
    revokedAt: at('revoked_at'),
  },
  (t) => [uniqueIndex('question_links_hash').on(t.hash), index('question_links_question_id_id').on(t.questionId, t.id)],
);
