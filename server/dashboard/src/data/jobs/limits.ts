// Limits from the API, and the text for each counted value.
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
