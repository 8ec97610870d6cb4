// The same text for two JSON values that differ only in the order of their fields.

export function canonicalJson(value: unknown): string {
  return JSON.stringify(sorted(value));
}

/** A copy with the names in order; the value itself where they are already. Stringifying natively is what makes it fast. */
function sorted(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) {
    const copy = value.map(sorted);
    return copy.every((inner, n) => inner === value[n]) ? value : copy;
  }
  const given = value as Record<string, unknown>;
  const names = Object.keys(given);
  let isSame = names.every((name, n) => n === 0 || (names[n - 1] as string) < name);
  if (!isSame) names.sort();
  const copy: Record<string, unknown> = {};
  for (const name of names) {
    copy[name] = sorted(given[name]);
    isSame &&= copy[name] === given[name];
  }
  return isSame ? value : copy;
}
