// A budget: how much of a unit (tokens, cents, requests) each job may use, or all jobs of a tenant, a type or a target
// together on one day. Stored by name in the settings of a tenant.
import { z } from 'zod';
import { limitNamePattern } from './limit.ts';

/** Tokens, cents, requests. */
export const unitPattern = /^[a-z][a-z0-9_]{0,39}$/;
const unitName = z.string().regex(unitPattern, `must match ${unitPattern.source}`);
const maxAmount = 1e15;

/** By unit. */
export const unitAmounts = z
  .record(unitName, z.number().min(0).max(maxAmount))
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
