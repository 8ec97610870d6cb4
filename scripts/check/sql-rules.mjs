// The rules that let the same SQL run on one Postgres and on a Citus cluster, where each tenant's schema is on one node.
// docs/scaling.md explains them. Each rule gets one statement, without comments and strings.

const volatileFunctions =
  /\b(clock_timestamp|statement_timestamp|timeofday|random|gen_random_uuid|nextval|setval|pg_(?:try_)?advisory\w*|pg_current_xact_id|pg_current_snapshot|txid_current\w*|pg_notify|set_config)\s*\(/i;
// Evaluated by the coordinator, or refused, where they stand beside a column.
const stableFunctions = /\b(now|to_jsonb|jsonb_build_object|jsonb_build_array|current_timestamp)\b\s*\(?/i;

/** What is wrong with a statement: `[{ rule, text }]`. */
export function violationsOf(source) {
  const sql = withoutStrings(source);
  return [...ofWholeStatement(sql), ...changes(sql).flatMap(ofChange), ...ofInserts(sql)];
}

function ofWholeStatement(sql) {
  const rules = [
    [/\bmerge\s+into\b/i, 'no MERGE'],
    [/\bcreate\s+(or\s+replace\s+)?(constraint\s+)?trigger\b/i, 'no triggers'],
    [/\breltuples\b/i, 'no reltuples: the coordinator has no rows'],
    [/\bcurrent_setting\s*\(/i, 'no logic on current_setting: the node has other settings'],
    [
      /\binsert\s+into\s+\S+\.events\s*\((?!\s*xid\b)/i,
      'events name their xid: a default is evaluated by the coordinator',
    ],
    [/\bset\s+storage\b/i, 'no SET STORAGE: Citus refuses it'],
    [
      /\bon\s+conflict\b[^;]*?\bdo\s+update\b(?:(?!\bwhere\b|\breturning\b)[\s\S])*?\bnow\s*\(/i,
      'in ON CONFLICT DO UPDATE use excluded',
    ],
  ];
  return rules
    .filter(([pattern]) => pattern.test(sql))
    .map(([pattern, rule]) => ({ rule, text: excerpt(sql, pattern) }));
}

function ofChange(change) {
  const found = [];
  const add = (pattern, part, rule) => {
    if (pattern.test(part)) found.push({ rule, text: excerpt(part, pattern) });
  };
  const [body, returning = ''] = change.split(/\breturning\b/i);
  add(volatileFunctions, change, 'no volatile function in UPDATE or DELETE: compute it in the SELECT of a CTE');
  add(stableFunctions, returning, 'no function in RETURNING: return columns, and compute in the final SELECT');
  for (const call of inner(body, /\bcoalesce\s*\(/gi))
    add(stableFunctions, call, 'no now() or JSON function in COALESCE');
  for (const [part] of body.matchAll(/\bcase\b[\s\S]*?\bend\b/gi)) {
    add(stableFunctions, part, 'no now() or JSON function in CASE: compute it in the SELECT of a CTE');
  }
  // `now() + $1 * interval …` and `now() - interval …` are fine.
  add(/\bnow\s*\(\s*\)\s*[-+]\s*(?!interval\b|\$|\(\s*\$)[a-z_]\w*/i, body, 'no arithmetic of now() and a column');
  add(/\b(?!interval\b)[a-z_]\w*\s*[-+]\s*now\s*\(/i, body, 'no arithmetic of now() and a column');
  return found;
}

/** Citus plans no task, and inserts nothing, where the SELECT has a subquery and no FROM. */
function ofInserts(sql) {
  return [...sql.matchAll(/\binsert\s+into\s/gi)]
    .map((match) => upToEnd(sql, match.index))
    .filter((insert) => {
      const flat = withoutParentheses(insert);
      return /\bselect\b/i.test(flat) && !/\bfrom\b/i.test(flat) && /\(\s*select\b/i.test(insert);
    })
    .map((insert) => ({
      rule: 'INSERT … SELECT with a subquery needs a FROM',
      text: insert.replace(/\s+/g, ' ').slice(0, 120),
    }));
}

function withoutParentheses(sql) {
  let depth = 0;
  let text = '';
  for (const char of sql) {
    if (char === '(') depth++;
    if (depth === 0) text += char;
    if (char === ')') depth--;
  }
  return text;
}

/** The texts of all UPDATEs and DELETEs, each without its subqueries, which may compute anything. */
function changes(sql) {
  const found = [];
  for (const match of sql.matchAll(/(?<![\w.])(?:(update)\s+(?=\S+\s)|(delete)\s+from\s)/gi)) {
    const before = sql.slice(0, match.index).trimEnd();
    // FOR UPDATE, FOR NO KEY UPDATE, DO UPDATE, ON UPDATE.
    if (/\b(for|key|do|on)$/i.test(before)) continue;
    found.push(withoutSubqueries(upToEnd(sql, match.index)));
  }
  return found;
}

/** Up to the parenthesis that closes the CTE around it. */
function upToEnd(sql, start) {
  let depth = 0;
  for (let i = start; i < sql.length; i++) {
    if (sql[i] === '(') depth++;
    else if (sql[i] === ')' && depth-- === 0) return sql.slice(start, i);
    else if (sql[i] === ';' && depth === 0) return sql.slice(start, i);
  }
  return sql.slice(start);
}

function withoutSubqueries(sql) {
  let text = sql;
  for (;;) {
    const start = text.search(/\(\s*(select|with|values)\b/i);
    if (start === -1) return text;
    text = `${text.slice(0, start)}( )${text.slice(start + upToEnd(text, start + 1).length + 2)}`;
  }
}

/** The arguments of each call. */
function inner(sql, call) {
  return [...sql.matchAll(call)].map((match) => upToEnd(sql, match.index + match[0].length));
}

function withoutStrings(sql) {
  return sql.replace(/--[^\n]*/g, '').replace(/'(?:[^']|'')*'/g, "''");
}

function excerpt(sql, pattern) {
  const at = sql.search(pattern);
  return sql
    .slice(Math.max(0, at - 40), at + 80)
    .replace(/\s+/g, ' ')
    .trim();
}
