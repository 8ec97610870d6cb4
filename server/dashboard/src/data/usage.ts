// What jobs used, summed up from the rows of the API: by unit, today and in all days, and by the types that used most.

export interface UsageRow {
  day: string;
  unit: string;
  /** Null: of all types. */
  type: string | null;
  used: number;
}

export interface UnitUsage {
  unit: string;
  today: number;
  total: number;
  types: { type: string; used: number }[];
}

const maxTypes = 3;

/** Days are those of UTC. */
export function sumUsage(rows: readonly UsageRow[], now: Date): UnitUsage[] {
  const today = now.toISOString().slice(0, 10);
  const units = [...new Set(rows.map(({ unit }) => unit))].sort();
  return units.map((unit) => {
    const own = rows.filter((row) => row.unit === unit);
    const all = own.filter(({ type }) => type === null);
    const types = new Map<string, number>();
    for (const { type, used } of own) if (type !== null) types.set(type, (types.get(type) ?? 0) + used);
    return {
      unit,
      today: sum(all.filter(({ day }) => day === today)),
      total: sum(all),
      types: [...types]
        .map(([type, used]) => ({ type, used }))
        .sort((a, b) => b.used - a.used)
        .slice(0, maxTypes),
    };
  });
}

function sum(rows: readonly UsageRow[]): number {
  return rows.reduce((total, { used }) => total + used, 0);
}
