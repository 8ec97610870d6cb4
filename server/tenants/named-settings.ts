// Limits and budgets, stored by name in the settings of a tenant. A limit: how many jobs may start per time or run at
// once, and which jobs it counts; handlers may declare limits too, by job type. A budget: how much of a unit (tokens,
// cents, requests) each job may use, or all jobs of a tenant, a type or a target together on one day.
import { z } from 'zod';
import { maxInt4 } from '../kernel/limits.ts';

/** Used in the keys of jobs, before a colon. */
export const limitNamePattern = /^[A-Za-z0-9][A-Za-z0-9._-]{0,49}$/;

const keyPattern = /^(target_id|author|payload(\.[^.]{1,100}){1,10})$/;
const secondsPer = { second: 1, minute: 60, hour: 3600, day: 86_400 } as const;
const name = z.string().min(1).max(200);

const shape = {
  rate: z.number().positive().max(maxInt4).optional().describe('Starts per `per`.'),
  per: z.enum(['second', 'minute', 'hour', 'day']).optional().describe('The time of `rate`; by default a second.'),
  burst: z
    .int()
    .min(1)
    .max(maxInt4)
    .optional()
    .describe('Starts that may come at once after a pause; by default those of one second, at least 1.'),
  concurrency: z.int().min(0).max(maxInt4).optional().describe('Jobs that may run at once; 0 starts none.'),
  key: z
    .string()
    .regex(keyPattern, 'must be target_id, author or payload.<field>')
    .optional()
    .describe('What is counted separately: `payload.account`, `target_id` or `author`. Without it all jobs share.'),
};

export const limitSetting = z
  .strictObject({
    ...shape,
    type: name.optional().describe('Only jobs of this type.'),
    queue: name.optional().describe('Only jobs of this queue.'),
  })
  .refine((limit) => limit.rate !== undefined || limit.concurrency !== undefined, {
    error: 'needs rate or concurrency',
    path: ['rate'],
  })
  .refine((limit) => limit.rate !== undefined || (limit.per === undefined && limit.burst === undefined), {
    error: 'is for a limit with a rate',
    path: ['burst'],
  })
  .meta({ id: 'LimitSetting' });
export type LimitSetting = z.output<typeof limitSetting>;

/** With more limits, the keys of a job that all of them count would not fit into an index. */
export const maxLimits = 20;

export const limitSettings = z
  .record(z.string().regex(limitNamePattern, `must match ${limitNamePattern.source}`), limitSetting)
  .refine((limits) => Object.keys(limits).length <= maxLimits, `has more than ${maxLimits} limits`);

export interface Limit extends LimitSetting {
  name: string;
  /** `settings`: set by the API; `code`: declared with the handler of its type. */
  source: 'settings' | 'code';
}

/** Declared limits by type: `{ "mail.send": { "mail.send": { rate: 100, per: 'minute' } } }`. */
export type DeclaredLimits = Readonly<Record<string, Readonly<Record<string, LimitSetting>>>>;

/** All limits of a tenant by name. One of its settings replaces a declared one of the same name. */
export function limitsOf(settings: Readonly<Record<string, LimitSetting>>, declared: DeclaredLimits): Limit[] {
  const limits = new Map<string, Limit>();
  for (const [type, byName] of Object.entries(declared)) {
    for (const [name, limit] of Object.entries(byName)) limits.set(name, { ...limit, name, type, source: 'code' });
  }
  for (const [name, limit] of Object.entries(settings)) limits.set(name, { ...limit, name, source: 'settings' });
  return [...limits.values()].sort((a, b) => (a.name < b.name ? -1 : 1)).slice(0, maxLimits);
}

/** Seconds from one token to the next; undefined without a rate. */
export function tokenSeconds({ rate, per = 'second' }: Pick<Limit, 'rate' | 'per'>): number | undefined {
  return rate === undefined ? undefined : secondsPer[per] / rate;
}

export function burstOf(limit: Pick<Limit, 'rate' | 'per' | 'burst'>): number {
  const seconds = tokenSeconds(limit);
  return limit.burst ?? (seconds === undefined ? 1 : Math.max(1, Math.ceil(1 / seconds)));
}

/** Tokens, cents, requests. */
export const unitPattern = /^[a-z][a-z0-9_]{0,39}$/;
const noUnit = `must be the name of a unit, which matches ${unitPattern.source}`;
const unitName = z.string().regex(unitPattern, noUnit);
const maxAmount = 1e15;

/** By unit. */
export const unitAmounts = z
  .record(unitName, z.number().min(0).max(maxAmount), {
    error: ({ code }) => (code === 'invalid_key' ? noUnit : undefined),
  })
  .refine((units) => Object.keys(units).length <= 20, 'has more than 20 units');

export const budgetSetting = z
  .strictObject({
    unit: unitName.describe('What is counted: `tokens`, `cents` or any name that handlers report.'),
    limit: z.number().positive().max(maxAmount),
    per: z
      .enum(['job', 'day', 'target_day'])
      .describe('For each job; for all jobs of a day together (UTC); for those of each target on a day.'),
    type: z.string().min(1).max(200).optional().describe('Only jobs of this type.'),
  })
  .refine((budget) => budget.per !== 'target_day' || budget.type === undefined, {
    error: 'is not for a budget of targets',
    path: ['type'],
  })
  .meta({ id: 'BudgetSetting' });
export type BudgetSetting = z.output<typeof budgetSetting>;

export const budgetSettings = z
  .record(z.string().regex(limitNamePattern, `must match ${limitNamePattern.source}`), budgetSetting)
  .refine((budgets) => Object.keys(budgets).length <= 50, 'has more than 50 budgets');
export type BudgetSettings = z.output<typeof budgetSettings>;
