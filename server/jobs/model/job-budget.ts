// Budgets of jobs: the limits that apply to a job, and whether its usage exceeds them. Tokens have their own columns
// and settings for historical reasons; every other unit is in `budget` and `usage`.
import { type BudgetSettings, unitPattern } from '../../tenants/named-settings.ts';
import type { Tenant } from '../../tenants/tenant.ts';

/** Amounts by unit. */
export type Units = Record<string, number>;

/** A budget that is used up. */
export interface Spent {
  unit: string;
  used: number;
  limit: number;
  /** The name of a budget in the tenant's settings; undefined for the job's own budget or the token limit. */
  budget?: string | undefined;
  per: 'job' | 'day' | 'target_day';
}

export interface BudgetedJob {
  type: string;
  targetId: string | null;
  tokenLimit: number | null;
  budget: Units | null;
}

export interface BudgetRules {
  /** The limit of jobs without their own; 0 means no limit. */
  tokenLimit: number;
  budgets?: BudgetSettings | undefined;
}

export function budgetRules({ settings }: Pick<Tenant, 'settings'>, tokenLimit: number): BudgetRules {
  return { tokenLimit: settings.token_limit ?? tokenLimit, budgets: settings.budgets };
}

/** Returns the first unit whose limit the job has exceeded. Limits of the job come before those of its tenant. */
export function findSpent(job: BudgetedJob, used: Units, { tokenLimit, budgets = {} }: BudgetRules): Spent | undefined {
  const own: Units = { ...job.budget, ...(job.tokenLimit !== null && { tokens: job.tokenLimit }) };
  for (const [unit, amount] of Object.entries(used)) {
    const limit = own[unit] ?? (unit === 'tokens' ? tokenLimit : 0);
    if (limit > 0 && amount > limit) return { unit, used: amount, limit, per: 'job' };
    if (own[unit] !== undefined) continue;
    for (const [budget, { unit: counted, limit, per, type }] of Object.entries(budgets)) {
      if (per !== 'job' || counted !== unit || (type ?? job.type) !== job.type || amount <= limit) continue;
      return { unit, used: amount, limit, budget, per };
    }
  }
  return undefined;
}

/** The usage of all jobs of a scope today; see `usageScopes`. */
export interface DayUsage {
  scope: string;
  unit: string;
  used: number;
}

/** Returns the first daily budget that is used up for this job. */
export function findSpentDay(job: BudgetedJob, days: readonly DayUsage[], budgets: BudgetSettings): Spent | undefined {
  for (const [budget, { unit, limit, per, type }] of Object.entries(budgets)) {
    if (per === 'job' || (type ?? job.type) !== job.type) continue;
    const scope = per === 'target_day' ? targetScope(job) : type === undefined ? '' : typeScope(type);
    const used = days.find((day) => day.scope === scope && day.unit === unit)?.used ?? 0;
    const allowed = Math.max(limit, job.budget?.[dayKey(budget)] ?? 0);
    if (used > allowed) return { unit, used, limit: allowed, budget, per };
  }
  return undefined;
}

/** The key in `budget` of a job for a daily budget that a person raised for this job. No unit has such a name. */
function dayKey(budget: string): string {
  return `day:${budget}`;
}

/** Returns the key in the job's own budget that a person raises so that the job may continue. */
export function unitOfRaise({ unit, budget, per }: Spent): string {
  return per === 'job' || budget === undefined ? unit : dayKey(budget);
}

/** Returns the scopes in which a job's usage is counted: the tenant, its type, and its target if a budget needs it. */
export function usageScopes(job: Pick<BudgetedJob, 'type' | 'targetId'>, budgets: BudgetSettings): string[] {
  const needsTarget = Object.values(budgets).some(({ per }) => per === 'target_day');
  const target = needsTarget ? targetScope(job) : undefined;
  return ['', typeScope(job.type), ...(target === undefined ? [] : [target])];
}

function typeScope(type: string): string {
  return `type:${type}`;
}

function targetScope({ targetId }: Pick<BudgetedJob, 'targetId'>): string | undefined {
  return targetId === null ? undefined : `target:${targetId}`;
}

/** Returns text such as `used 120 of 100 cents of today (budget daily)`. */
export function describeSpent({ unit, used, limit, budget, per }: Spent): string {
  const whose = per === 'job' ? '' : per === 'day' ? ' of today' : ' of today for its target';
  return `used ${used} of ${limit} ${unit}${whose}${budget === undefined ? '' : ` (budget ${budget})`}`;
}

// Rounds sums, so that 0.1 + 0.2 is 0.3.
const decimals = 1e6;

export function sumOf(before: number | undefined, amount: number): number {
  return Math.round(((before ?? 0) + amount) * decimals) / decimals;
}

/** Throws if a handler reports an amount that cannot be counted. */
export function checkUsage(usage: Units): void {
  if (typeof usage !== 'object' || usage === null)
    throw new TypeError('usage must be an object such as { tokens: 100 }');
  for (const [unit, amount] of Object.entries(usage)) {
    if (!unitPattern.test(unit))
      throw new RangeError(`the name of a unit must match ${unitPattern.source}, not "${unit}"`);
    if (unit === 'tokens' && !(Number.isSafeInteger(amount) && amount >= 0)) {
      throw new RangeError('tokens must be a whole number from 0');
    }
    if (!(Number.isFinite(amount) && amount >= 0)) throw new RangeError(`${unit} must be a number from 0`);
  }
}
