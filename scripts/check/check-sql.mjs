// `npm run sql`: every statement over a tenant's tables keeps the rules of sql-rules.mjs, so that a change made without
// a cluster at hand does not break it. Reads the statements of the server's sources, those that test/snapshots
// has as Postgres gets them, and the migrations. Refuses parameters by number in the sources as well: they have names.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { violationsOf, withoutStrings } from './sql-rules.mjs';

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
// The first reads them from the tenant's node; the others put the epoch of the log into the ids by themselves, or compare
// ids of the server with each other.
const readsTransactions = [
  'server/events/log/transaction-ids.ts',
  'server/events/log/event-listeners.ts',
  'server/jobs/retention/mark-stale.ts',
  'server/maintenance/activity-tracker.ts',
];
// Applied files cannot be edited. The runner leaves SET STORAGE out on a cluster; what 0022 adds to is a variable; of the last two,
// one does nothing on a cluster and the other does nothing elsewhere. The test engine moves times back, on the node itself.
const exceptions = {
  'server/testing/engine.ts': ['time column'],
  'migrations/tenant/0002_leaner_jobs.sql': ['SET STORAGE'],
  'migrations/tenant/0011_enqueue_function.sql': ['xid'],
  'migrations/tenant/0022_enqueue_options.sql': ['time column'],
  'migrations/tenant/0025_lease_end.sql': ['triggers'],
  'migrations/tenant/0027_lease_end_on_clusters.sql': ['triggers'],
};

const tables = tablesOfTenants();
const tableName = new RegExp(`^\\."?(?:${tables.join('|')})\\b`);
const unqualified = new RegExp(
  `\\b(?:from|join|into|update|delete from)\\s+(?:only\\s+)?"?(${tables.join('|')})"?(?![\\w."(]|\\s*\\()`,
  'gi',
);

let checked = 0;
const failures = [];

for (const file of filesBelow('server', '.ts')) checkSource(file);
for (const file of filesBelow('test/snapshots', '.sql')) check(file, readFileSync(join(root, file), 'utf8'));
for (const file of filesBelow('migrations/tenant', '.sql')) {
  for (const statement of readFileSync(join(root, file), 'utf8').split('--> statement-breakpoint'))
    check(file, statement);
}
for (const { file, rule, text } of failures) console.error(`${file}: ${rule}\n    ${text}`);
console.log(`${checked} statements over tables of tenants: ${failures.length} violations of the rules for clusters`);
process.exitCode = failures.length > 0 ? 1 : 0;

function check(file, sql) {
  checked++;
  for (const violation of violationsOf(sql)) {
    if (!exceptions[file]?.some((allowed) => violation.rule.includes(allowed))) failures.push({ file, ...violation });
  }
}

function checkSource(file) {
  const source = ts.createSourceFile(file, readFileSync(join(root, file), 'utf8'), ts.ScriptTarget.Latest, true);
  const visit = (node) => {
    if (isText(node) && !isText(node.parent)) checkText(file, textOf(node));
    if (ts.isPropertyAccessExpression(node) && node.name.text === 'constraint') {
      failures.push({
        file,
        rule: 'branch on the SQL state: names of constraints differ on a cluster',
        text: node.getText(),
      });
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
}

/** A literal, a template, or several of them put together with `+`. */
function isText(node) {
  if (ts.isTemplateExpression(node) || ts.isStringLiteralLike(node)) return true;
  if (!ts.isBinaryExpression(node) || node.operatorToken.kind !== ts.SyntaxKind.PlusToken) return false;
  return isText(node.left) || isText(node.right);
}

function checkText(file, { text, schemas }) {
  const fail = (rule) => failures.push({ file, rule, text: text.replace(/\s+/g, ' ').slice(0, 120) });
  if (/\bpg_(?:try_)?advisory_(?:un)?lock\w*\s*\(/.test(text))
    fail('no lock of a session: a pooler has other clients in it');
  if (schemas.size > 1) fail('one tenant per statement');
  const isStatement =
    /^\s*(?:with\s+(?:recursive\s+)?\w+\s*(?:\([^)]*\)\s*)?as|select|insert\s+into|update|delete\s+from)\s/.test(text);
  const sql = withoutStrings(text);
  if (isStatement && /;\s*\S/.test(sql)) fail('one statement per query');
  for (const [, name] of isStatement ? sql.matchAll(unqualified) : []) {
    if (!new RegExp(`\\b${name}\\b\\s*(?:\\([^()]*\\)\\s*)?as\\s+(?:not\\s+)?(?:materialized\\s+)?\\(`, 'i').test(sql))
      fail(`name the schema of ${name}`);
  }
  if (/\b(pg_current_snapshot|pg_current_xact_id)\s*\(/.test(text) && !readsTransactions.includes(file)) {
    failures.push({ file, rule: 'transaction ids come from events/log/transaction-ids.ts', text: text.slice(0, 120) });
  }
  if (/\binsert\s+into\s+tenant_x\.events\b/i.test(text) && file !== 'server/events/log/record.ts') {
    failures.push({
      file,
      rule: 'events are inserted by insertEvents of events/log/record.ts',
      text: text.slice(0, 120),
    });
  }
  if (/\$[1-9]/.test(text) && /\b(select|update|insert|delete|where|limit|interval)\b|::/i.test(text)) {
    failures.push({ file, rule: 'name the parameters (server/database/sql.ts)', text: text.slice(0, 120) });
  }
  if (/\btenant_x\./.test(text) && /\b(select|update|insert|delete)\b/i.test(text)) check(file, text);
}

/** The text with a name in place of each expression; a tenant's schema becomes `tenant_x`. */
function textOf(node) {
  const schemas = new Set();
  const parts = partsOf(node);
  const text = parts.map((part, i) => {
    if (typeof part === 'string') return part;
    const next = parts[i + 1];
    const name = part.getText();
    const isSchema =
      typeof next === 'string' &&
      next.startsWith('.') &&
      name !== 'controlSchema' &&
      (tableName.test(next) || /^(\w+\.)*(schema|tenant|s)$|schema\)?$/i.test(name));
    if (isSchema) schemas.add(name);
    return isSchema ? 'tenant_x' : ' expr ';
  });
  return { text: text.join(''), schemas };
}

/** Strings, and the expressions between them. */
function partsOf(node) {
  if (ts.isStringLiteralLike(node)) return [node.text];
  if (ts.isTemplateExpression(node))
    return [node.head.text, ...node.templateSpans.flatMap(({ expression, literal }) => [expression, literal.text])];
  if (isText(node)) return [...partsOf(node.left), ...partsOf(node.right)];
  return [node];
}

function tablesOfTenants() {
  const sql = filesBelow('migrations/tenant', '.sql')
    .map((file) => readFileSync(join(root, file), 'utf8'))
    .join('\n');
  return [
    ...new Set([...sql.matchAll(/create table "tenant_template"\."(\w+)"/gi)].map((match) => match[1])),
    'migrations',
  ];
}

function filesBelow(directory, extension) {
  return readdirSync(join(root, directory), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(extension) && !entry.parentPath.includes('dashboard'))
    .map((entry) => relative(root, join(entry.parentPath, entry.name)).replaceAll('\\', '/'))
    .sort();
}
