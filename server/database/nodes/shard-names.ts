// Rewrites statements for the node of a tenant. There, a table of the tenant has the name of its shard, such as
// `jobs_102008`, and Postgres plans and runs a statement over shards without Citus. Aliases keep the tables' own names
// for columns.
import type { Schema } from '../identifiers.ts';
import { firstNumber, fromEpochs, logCte } from '../log-epoch.ts';

/** The shard of each table, by the table's name. */
export type Shards = ReadonlyMap<string, string>;

// Words that may follow a table without an alias.
const notAnAlias = new Set(
  `where set on join left right inner cross full natural order group limit offset fetch for using returning values select
   union except intersect with having window default overriding tablesample from when then and or not end is`.split(
    /\s+/,
  ),
);

/** Tables with numbered rows. Shards have no sequence, so the statement takes the number. */
const numbered = new Set(['events', 'job_logs']);

/** The statement over shards; undefined if it names a table whose shard is not known. */
export function toShardNames(text: string, schema: Schema, shards: Shards): string | undefined {
  const table = new RegExp(`${schema}\\."?(\\w+)"?(?=([\\s\\S]?)(?:\\s*(as\\s+)?"?(\\w+)"?)?)`, 'gi');
  let isKnown = true;
  const named = withNumbers(text, schema).replace(
    table,
    (whole, name: string, next: string, as: string | undefined, word: string | undefined) => {
      const shard = shards.get(name);
      if (shard === undefined) {
        // Every node has the tenant's functions and sequences under their own names.
        if (next !== '(' && next !== "'") isKnown = false;
        return whole;
      }
      if (next === '.') return `"${name}"`;
      const hasAlias =
        as !== undefined || (/\s/.test(next) && word !== undefined && !notAnAlias.has(word.toLowerCase()));
      return `${schema}."${name}_${shard}"${hasAlias ? '' : ` as "${name}"`}`;
    },
  );
  return isKnown ? named : undefined;
}

/**
 * The statement with the numbers of the tenant's node, for the coordinator: it evaluates the default of `seq` itself,
 * and its numbers are lower than those of the events that the node wrote.
 */
export function withNodeNumbers(text: string, schema: Schema): string {
  return withNumbers(text, schema, 'coordinator');
}

/** Adds the column `seq` and its value to each INSERT into a table with numbered rows. */
function withNumbers(text: string, schema: Schema, through?: 'coordinator'): string {
  const insert = new RegExp(`insert\\s+into\\s+${schema}\\."?(\\w+)"?\\s*\\(`, 'gi');
  let result = '';
  let from = 0;
  for (const match of text.matchAll(insert)) {
    const table = match[1] as string;
    const columns = match.index + match[0].length;
    if (!numbered.has(table) || /^[^()]*\bseq\b/i.test(text.slice(columns))) continue;
    const end = endOf(text, columns, 1);
    const before = text.slice(from, match.index);
    const log = before.lastIndexOf(logCte);
    // Citus plans no INSERT with another subquery among its values.
    if (through === 'coordinator' && log === -1) continue;
    const first = log === -1 ? `(select ${firstNumber} ${fromEpochs(schema)})` : 'log.first_number';
    const number = `${first} + (nextval('${schema}.${table}_seq_seq') & 281474976710655)`;
    const rows = withFirstValue(text.slice(columns, end), number);
    const sent = through === 'coordinator' ? computedOnNode(rows) : rows;
    result += `${withFirstNumber(before, log)}${match[0]}seq, ${sent}`;
    from = end;
  }
  return result + text.slice(from);
}

/** In a subquery, because the coordinator would compute `nextval` itself. The text begins within the list of columns. */
function computedOnNode(rows: string): string {
  const end = rows.indexOf(')') + 1;
  return `${rows.slice(0, end)} overriding system value select * from (${rows.slice(end)}) as numbered`;
}

function withFirstNumber(text: string, log: number): string {
  if (log === -1) return text;
  const column = log + logCte.length;
  return `${text.slice(0, column)} ${firstNumber} as first_number,${text.slice(column)}`;
}

/** The position of the parenthesis that closes the one around the statement, or the end of the text. */
function endOf(text: string, start: number, within: number): number {
  let depth = within;
  for (let i = start; i < text.length; i++) {
    if (text[i] === '(') depth += 1;
    else if (text[i] === ')' && depth-- === 0) return i;
  }
  return text.length;
}

/** Adds a value to each row of SELECT or VALUES. The text begins within the list of columns. */
function withFirstValue(text: string, value: string): string {
  const keyword = /\b(select|values)\b/iy;
  let depth = 1;
  let hasValues = false;
  let result = '';
  for (let i = 0; i < text.length; i++) {
    const char = text[i] as string;
    result += char;
    if (char === ')') depth -= 1;
    if (char === '(' && depth++ === 0 && hasValues) result += `${value}, `;
    if (depth !== 0 || /\w/.test(char)) continue;
    keyword.lastIndex = i + 1;
    const [found] = keyword.exec(text) ?? [];
    if (found === undefined) continue;
    hasValues = found.toLowerCase() === 'values';
    result += hasValues ? found : `${found} ${value},`;
    i += found.length;
  }
  return result;
}
