// The same text for two JSON values that differ only in the order of their fields.

export function canonicalJson(value: unknown): string {
  return JSON.stringify(sorted(value));
}

/** A copy with sorted names, or the value itself if they are sorted. JSON.stringify of a copy beats a hand-written one. */
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
