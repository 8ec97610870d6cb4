// The rules that let the same SQL run on one Postgres and on a Citus cluster, where each tenant's schema is on one node.
// docs/scaling.md explains them. Each rule gets one statement, without comments and strings.

const volatileFunctions =
  /\b(clock_timestamp|statement_timestamp|timeofday|random\w*|gen_random_uuid|nextval|setval|currval|lastval|pg_(?:try_)?advisory\w*|pg_current_xact_id|pg_current_snapshot|txid_current\w*|pg_notify|pg_sleep\w*|set_config)\s*\(/i;
// Citus refuses a function that is not immutable and gets a column, and the rules do not know types: what is not in this
// list is computed elsewhere. `now()` has rules of its own.
const immutableFunctions = new Set(
  'coalesce greatest least nullif any all array row exists cardinality array_position unnest jsonb_set now'.split(' '),
);
/** Words before a parenthesis that is no call. */
const keywords = new Set(
  `and or not in is as from where set on when then else case using values select distinct like between over filter with
   conflict update delete into returning only`.split(/\s+/),
);
const nowByName =
  /\b(localtimestamp|localtime|current_timestamp|current_time|current_date|current_user|session_user)\b/i;
/** Times end so; their sums, and their texts, depend on the time zone of the session. */
const ofTime = /\b\w+_(?:at|until|since)\b\s*(?:::|[-+]|at\s+time\s+zone)/i;

/** What is wrong with a statement: `[{ rule, text }]`. */
export function violationsOf(source) {
  const sql = withoutStrings(source);
  return [...ofWholeStatement(sql), ...changes(sql).flatMap(ofChange), ...inserts(sql).flatMap(ofInsert)];
}

function ofWholeStatement(sql) {
  const rules = [
    [/\bmerge\s+into\b/i, 'no MERGE'],
    [/\bcreate\s+(or\s+replace\s+)?(constraint\s+)?trigger\b/i, 'no triggers'],
    [/\breltuples\b/i, 'no reltuples: the coordinator has no rows'],
    [/\bcurrent_setting\s*\(/i, 'no logic on current_setting: the node has other settings'],
    [
      /\binsert\s+into\s+\S+\."?events\b"?(?!\s*(?:as\s+\w+\s*)?\(\s*(?:seq\s*,\s*)?xid\b)/i,
      'events name their xid: a default is evaluated by the coordinator',
    ],
    [/\bset\s+storage\b/i, 'no SET STORAGE: Citus refuses it'],
  ];
  return rules
    .filter(([pattern]) => pattern.test(sql))
    .map(([pattern, rule]) => ({ rule, text: excerpt(sql, pattern) }));
}

/** An UPDATE or DELETE. A subquery may compute anything that is not volatile. */
function ofChange(whole) {
  const found = [];
  const add = (pattern, part, rule) => {
    if (pattern.test(part)) found.push({ rule, text: excerpt(part, pattern) });
  };
  const [body, returning = ''] = withoutSubqueries(whole).split(/\breturning\b/i);
  add(volatileFunctions, whole, 'no volatile function in UPDATE or DELETE: compute it in the SELECT of a CTE');
  found.push(...ofReturning(returning));
  for (const call of inner(body, /\bcoalesce\s*\(/gi)) add(/\bnow\s*\(/i, call, 'no now() in COALESCE');
  for (const [part] of body.matchAll(/\bcase\b[\s\S]*?\bend\b/gi)) {
    add(/\bnow\s*\(/i, part, 'no now() in CASE: compute it in the SELECT of a CTE');
  }
  add(nowByName, body, 'write now(), which the other rules know');
  for (const name of calls(body)) {
    if (immutableFunctions.has(name) || volatileFunctions.test(`${name}(`)) continue;
    found.push({
      rule: 'no function in UPDATE or DELETE that may not be immutable: compute it in the SELECT of a CTE',
      text: name,
    });
  }
  // `now() + $1 * interval …` and `now() - interval …` are fine.
  const sums = [...body.matchAll(/\bnow\s*\(\s*\)\s*[-+]/gi)].map((match) =>
    operand(body, match.index + match[0].length),
  );
  const isSummed =
    sums.some((sum) => /[a-z_]\w*/i.test(constantsOut(sum))) || /[\w)]\s*[-+]\s*now\s*\(/i.test(constantsOut(body));
  if (isSummed)
    found.push({ rule: 'no arithmetic of now() and a column', text: body.replace(/\s+/g, ' ').slice(0, 120) });
  add(
    /(?<![:$\w])[a-z_]\w*\s*::\s*(?:interval|timestamp|date|time)|\)\s*::\s*interval/i,
    body,
    'no cast of a column to a time or interval',
  );
  // Reported once.
  if (!isSummed) add(ofTime, body, 'no arithmetic or cast of a time column: compute it in the SELECT of a CTE');
  return found;
}

function ofReturning(returning) {
  const refused = calls(returning).find((name) => !['coalesce', 'greatest', 'least'].includes(name));
  if (refused === undefined && !ofTime.test(returning) && !nowByName.test(returning)) return [];
  return [
    {
      rule: 'no function in RETURNING: return columns, and compute in the final SELECT',
      text: returning.replace(/\s+/g, ' ').trim().slice(0, 120),
    },
  ];
}

function ofInsert(whole) {
  const found = [];
  const add = (rule, part = whole) => found.push({ rule, text: part.replace(/\s+/g, ' ').trim().slice(0, 120) });
  const flat = withoutParentheses(whole);
  const isSelect = /\bselect\b/i.test(flat);
  // Citus plans no task, and inserts nothing, where the SELECT has a subquery and no FROM.
  if (isSelect && !/\bfrom\b/i.test(flat) && /\(\s*select\b/i.test(whole))
    add('INSERT … SELECT with a subquery needs a FROM');
  const [values, update = ''] = whole.split(/\bdo\s+update\b/i);
  if (!isSelect && /\bvalues\b[\s\S]*\(\s*select\b/i.test(values)) add('no subquery in VALUES: insert from a SELECT');
  const [changed, returning = ''] = withoutSubqueries(update === '' ? whole : update).split(/\breturning\b/i);
  found.push(...ofReturning(returning));
  const refused = calls(changed).some((name) => name === 'now' || !immutableFunctions.has(name));
  if (update !== '' && (refused || nowByName.test(changed) || ofTime.test(changed)))
    add('in ON CONFLICT DO UPDATE use excluded', changed);
  return found;
}

/** The names of the functions that are called, without definitions of columns (`as k(key)`). */
function calls(sql) {
  return [...sql.matchAll(/(\bas\s+)?\b([a-z_]\w*)\s*\(/gi)]
    .filter(([, as]) => as === undefined)
    .map(([, , name]) => name.toLowerCase())
    .filter((name) => !keywords.has(name));
}

/** From `start` up to the end of the operand of a sum. */
function operand(sql, start) {
  const rest = upToEnd(sql, start);
  let depth = 0;
  for (const { 0: token, index } of rest.matchAll(
    /[()]|,|[<>=]|\b(?:where|and|or|from|then|else|end|when|returning)\b/gi,
  )) {
    if (token === '(') depth++;
    else if (token === ')') depth--;
    else if (depth === 0) return rest.slice(0, index);
  }
  return rest;
}

/** Without parameters, casts, strings, intervals and the expressions of a template. */
function constantsOut(sql) {
  return sql.replace(/::\s*\w+(?:\s+precision)?(?:\[\])?|:[a-z]\w*|\$\w+|\binterval\s*''|''|\bexpr\b/gi, ' ');
}

function inserts(sql) {
  return [...sql.matchAll(/\binsert\s+into\s/gi)].map((match) => upToEnd(sql, match.index));
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

/** The texts of all UPDATEs and DELETEs. */
function changes(sql) {
  const found = [];
  for (const match of sql.matchAll(/(?<![\w.])(?:(update)\s+(?=\S+\s)|(delete)\s+from\s)/gi)) {
    const before = sql.slice(0, match.index).trimEnd();
    // FOR UPDATE, FOR NO KEY UPDATE, DO UPDATE, ON UPDATE, and a trigger's AFTER UPDATE.
    if (/\b(for|key|do|on|after|before|or)$/i.test(before)) continue;
    found.push(upToEnd(sql, match.index));
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

export function withoutStrings(sql) {
  return sql.replace(/--[^\n]*/g, '').replace(/'(?:[^']|'')*'/g, "''");
}

function excerpt(sql, pattern) {
  const at = sql.search(pattern);
  return sql
    .slice(Math.max(0, at - 40), at + 80)
    .replace(/\s+/g, ' ')
    .trim();
}
