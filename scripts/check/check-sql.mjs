// `npm run sql`: every statement over a tenant's tables keeps the rules of sql-rules.mjs, so that a change made without
// a cluster at hand does not break it. Reads the statements of the server's sources, those that test/snapshots
// has as Postgres gets them, and the migrations. Refuses parameters by number in the sources as well: they have names.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { violationsOf } from './sql-rules.mjs';

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
// The first reads them from the tenant's node; the others put the epoch of the log into the ids by themselves, or compare
// ids of the server with each other.
const readsTransactions = [
  'server/events/log/transaction-ids.ts',
  'server/events/log/event-listeners.ts',
  'server/jobs/retention/mark-stale.ts',
  'server/maintenance/activity-tracker.ts',
];
// Applied files cannot be edited: the runner leaves these statements out on a cluster. Of the last two, one does nothing on a
// cluster and the other does nothing elsewhere.
const applied = {
  'migrations/tenant/0002_leaner_jobs.sql': ['SET STORAGE'],
  'migrations/tenant/0011_enqueue_function.sql': ['xid'],
  'migrations/tenant/0025_lease_end.sql': ['triggers'],
  'migrations/tenant/0027_lease_end_on_clusters.sql': ['triggers'],
};

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
    if (!applied[file]?.some((allowed) => violation.rule.includes(allowed))) failures.push({ file, ...violation });
  }
}

function checkSource(file) {
  const source = ts.createSourceFile(file, readFileSync(join(root, file), 'utf8'), ts.ScriptTarget.Latest, true);
  const visit = (node) => {
    if (ts.isTemplateExpression(node) || ts.isStringLiteralLike(node)) checkText(file, textOf(node));
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

function checkText(file, text) {
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

/** A template with a name in place of each expression; the tenant's schema becomes `tenant_x`. */
function textOf(node) {
  if (ts.isStringLiteralLike(node)) return node.text;
  const parts = node.templateSpans.map(({ expression, literal }) => {
    const isSchema =
      literal.text.startsWith('.') && /^(\w+\.)*(schema|tenant|s)$|schema\)?$/i.test(expression.getText());
    return `${isSchema ? 'tenant_x' : ' expr '}${literal.text}`;
  });
  return node.head.text + parts.join('');
}

function filesBelow(directory, extension) {
  return readdirSync(join(root, directory), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith(extension) && !entry.parentPath.includes('dashboard'))
    .map((entry) => relative(root, join(entry.parentPath, entry.name)).replaceAll('\\', '/'))
    .sort();
}
