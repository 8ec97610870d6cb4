// Limits from the API with the text for each counted value, and the sums of what jobs used: by unit, today and in all
// days, and by the types that used most.

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

interface LimitKey {
  value: string;
  waiting: number;
  running: number;
  tokens: number | null;
  next_at: string | null;
}

export interface Limit {
  name: string;
  type: string | null;
  queue: string | null;
  key: string | null;
  rate: number | null;
  per: string | null;
  concurrency: number | null;
  waiting: number;
  running: number;
  keys: LimitKey[];
}

/** Without a key the counts are those of the limit itself, which the card shows already; only tokens are new. */
export function limitEntry({ key }: Limit, { value, waiting, running, tokens }: LimitKey) {
  if (key === null) return tokens === null ? undefined : { name: 'tokens', text: count(tokens) };
  return { name: value === '' ? `no ${key}` : value, text: `${count(waiting)} waiting, ${count(running)} running` };
}

function count(number: number): string {
  return number.toLocaleString('en-US');
}
