// A real answer as an example of the document: what differs from run to run is replaced, lists are cut to their first
// elements.
const uuid = /\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b/g;
const time = /^20[2-7]\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)$/;
const firstMs = Date.parse('2026-01-02T09:00:00Z');
const shownElements = 2;
// Of texts that are no JSON.
const shownLines = 8;

export interface Replacement {
  text: string;
  by: string;
}

export function toExample(answer: unknown, replacements: readonly Replacement[]): unknown {
  const cut = shorten(answer);
  const times = new Set<string>();
  walk(cut, (text) => {
    if (time.test(text)) times.add(text);
    return text;
  });
  const order = [...times].sort((a, b) => Date.parse(a) - Date.parse(b));
  const ids: string[] = [];
  const machines: string[] = [];
  return walk(cut, (text) => {
    if (time.test(text)) return new Date(firstMs + order.indexOf(text) * 1000).toISOString();
    const plain = replacements.reduce((done, { text: from, by }) => done.replaceAll(from, by), text);
    return plain
      .replace(/\n {4}at [\s\S]*$/, '\n    at run (handler.js:12:9)')
      .split('\n')
      .slice(0, shownLines)
      .join('\n')
      .replaceAll(/\blh_[\w-]+/g, 'lh_0190b2a45c1e7d3a_your-key')
      .replaceAll(/\bwhsec_[\w+/=]+/g, 'whsec_c2VjcmV0LW9mLXlvdXItb3duLXdlYmhvb2tz')
      .replaceAll(/\/q\/[\w.-]+/g, '/q/token-of-the-link')
      .replaceAll(/\bglobex_\d+/g, 'globex')
      .replaceAll(/\bhost-1-\d+-[0-9a-f]+/g, 'host-1-4711-af7b51')
      .replaceAll(/\b[0-9a-f]{16}([0-9a-f]{16})?\b/g, (id) => '0190b2a45c1e7d3a9f104a2f6c1b7e55'.slice(0, id.length))
      .replaceAll(/\bmachine-\d+/g, (id) => `machine-${7 + indexIn(machines, id)}`)
      .replaceAll(uuid, (id) => `0190b2a4-5c1e-7d3a-9f10-4a2f6c1b${7000 + indexIn(ids, id)}`);
  });
}

function indexIn(known: string[], id: string): number {
  if (!known.includes(id)) known.push(id);
  return known.indexOf(id);
}

function shorten(value: unknown): unknown {
  if (Array.isArray(value)) return value.slice(0, shownElements).map(shorten);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, shorten(inner)]));
}

function walk(value: unknown, change: (text: string) => string): unknown {
  if (typeof value === 'string') return change(value);
  if (Array.isArray(value)) return value.map((inner) => walk(inner, change));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, walk(inner, change)]));
}
