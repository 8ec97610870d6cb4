// `npm run migrations:generate` writes what the tables need and the migrations lack;
// `-- tenant --custom --name x` makes an empty one for that schema. With --check it writes to a copy
// and fails if there was anything to write.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const check = process.argv.includes('--check');
const all = ['control', 'tenant'];
const asked = all.filter((schema) => process.argv.includes(schema));
const rest = process.argv.slice(2).filter((argument) => argument !== '--check' && !all.includes(argument));

// drizzle-kit takes relative paths only, so the copy lies inside the package.
const copy = check ? mkdtempSync(join(root, 'node_modules', '.migrations-')) : undefined;
try {
  if (copy) cpSync(join(root, 'migrations'), copy, { recursive: true });
  const out = relative(root, copy ?? join(root, 'migrations'));
  for (const schema of asked.length > 0 ? asked : all) generate(schema, `./${out.replaceAll('\\', '/')}/${schema}`);
  if (copy) compare(copy);
} finally {
  if (copy) rmSync(copy, { recursive: true, force: true });
}

function generate(schema, out) {
  const result = spawnSync(
    process.execPath,
    [join(root, 'node_modules', 'drizzle-kit', 'bin.cjs'), 'generate', ...rest],
    {
      cwd: root,
      env: { ...process.env, DRIZZLE_SCHEMA: schema, DRIZZLE_OUT: out },
      encoding: 'utf8',
      // Without a terminal a question (was this column renamed?) fails instead of waiting for ever.
      stdio: check ? 'pipe' : 'inherit',
    },
  );
  if (result.status === 0) return;
  console.error(`${result.stdout ?? ''}${result.stderr ?? ''}`);
  console.error(`drizzle-kit generate failed for the ${schema} tables`);
  process.exitCode = 1;
}

function compare(folder) {
  const before = sqlFiles(join(root, 'migrations'));
  const added = sqlFiles(folder).filter((file) => !before.includes(file));
  if (added.length === 0) return console.log('migrations are in step with the tables');
  console.error(
    `The tables have changes without a migration; run npm run migrations:generate (it would write ${added.join(', ')})`,
  );
  process.exitCode = 1;
}

function sqlFiles(folder) {
  return readdirSync(folder, { recursive: true })
    .map(String)
    .filter((file) => file.endsWith('.sql'));
}
