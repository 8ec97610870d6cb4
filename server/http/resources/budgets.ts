// /api/budgets: the limits of usage by unit, and the usage of today.
import { z } from 'zod';
import type { Database } from '../../database/database.ts';
import { problem } from '../../kernel/errors.ts';
import { invalidFields } from '../../kernel/fields.ts';
import { readUsageDays, readUsageToday, type UsageToday } from '../../stats/usage.ts';
import { type BudgetSetting, budgetSetting, limitNamePattern } from '../../tenants/named-settings.ts';
import type { TenantRegistry } from '../../tenants/registry.ts';
import type { Tenant } from '../../tenants/tenant.ts';
import { changeNamedSettings } from '../../tenants/tenant-settings.ts';
import { RouteGroup, reply } from '../route.ts';

interface BudgetDependencies {
  db: Database;
  registry: Pick<TenantRegistry, 'refresh'>;
}

const maxBudgets = 50;

const budgetSchema = z
  .strictObject({
    name: z.string(),
    unit: z.string(),
    limit: z.number(),
    per: z.enum(['job', 'day', 'target_day']),
    type: z.string().nullable(),
    used: z.number().nullable().describe('Today; of the target that used most. Null for a budget of each job.'),
  })
  .meta({ id: 'Budget' });

const usageSchema = z.strictObject({
  day: z.string().describe('UTC.'),
  unit: z.string(),
  type: z.string().nullable().describe('Null: all types together.'),
  used: z.number(),
});

const params = z.strictObject({ name: z.string().max(100) });

export function budgetRoutes({ db: control, registry }: BudgetDependencies): RouteGroup {
  const group = new RouteGroup('Budgets');
  group.route({
    method: 'get',
    path: '/api/budgets',
    summary: 'List budgets, and what was used today',
    access: 'read',
    answers: { 200: z.strictObject({ budgets: z.array(budgetSchema) }) },
    handle: async ({ tenant, db }) => {
      const today = await readUsageToday(db, tenant.schema);
      const budgets = Object.entries(tenant.settings.budgets ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
      return { budgets: budgets.map(([name, budget]) => budgetToApi(name, budget, today)) };
    },
  });
  group.route({
    method: 'put',
    path: '/api/budgets/{name}',
    summary: 'Set a budget',
    description: 'Replaces the budget of this name. It applies to what handlers report from then on.',
    access: 'admin',
    params,
    body: budgetSetting,
    answers: { 200: budgetSchema, 201: budgetSchema },
    handle: async ({ tenant, db, params: { name }, body }) => {
      const isNew = await putBudget(control, tenant, name, body);
      await registry.refresh();
      return reply(isNew ? 201 : 200, budgetToApi(name, body, await readUsageToday(db, tenant.schema)));
    },
  });
  group.route({
    method: 'delete',
    path: '/api/budgets/{name}',
    summary: 'Remove a budget; jobs that it holds stay held',
    access: 'admin',
    params,
    answers: { 204: null },
    problems: ['NOT_FOUND'],
    handle: async ({ tenant, params: { name } }) => {
      await changeNamedSettings(control, tenant, 'budgets', (budgets) => {
        if (budgets[name] === undefined) throw problem('NOT_FOUND', 'There is no such budget.');
        delete budgets[name];
      });
      await registry.refresh();
      return reply(204);
    },
  });
  group.route({
    method: 'get',
    path: '/api/stats/usage',
    summary: 'What jobs used of each unit, by day and type',
    access: 'read',
    query: z.strictObject({ days: z.coerce.number().int().min(1).max(365).default(30) }),
    answers: { 200: z.strictObject({ usage: z.array(usageSchema) }) },
    handle: async ({ tenant, db, query }) => ({ usage: await readUsageDays(db, tenant.schema, query.days) }),
  });
  return group;
}

/** True if the budget is new. */
async function putBudget(db: Database, tenant: Tenant, name: string, budget: BudgetSetting): Promise<boolean> {
  if (!limitNamePattern.test(name)) {
    throw invalidFields([{ field: 'name', message: `must match ${limitNamePattern.source}` }]);
  }
  return changeNamedSettings(db, tenant, 'budgets', (budgets) => {
    const isNew = budgets[name] === undefined;
    if (isNew && Object.keys(budgets).length >= maxBudgets) {
      throw invalidFields([{ field: 'name', message: `a tenant has at most ${maxBudgets} budgets` }]);
    }
    budgets[name] = budget;
    return isNew;
  });
}

function budgetToApi(name: string, budget: BudgetSetting, today: readonly UsageToday[]): z.input<typeof budgetSchema> {
  const { unit, limit, per, type } = budget;
  const isCounted = ({ scope }: UsageToday) =>
    per === 'target_day' ? scope.startsWith('target:') : scope === (type === undefined ? '' : `type:${type}`);
  const used = per === 'job' ? null : (today.find((row) => row.unit === unit && isCounted(row))?.used ?? 0);
  return { name, unit, limit, per, type: type ?? null, used };
}
