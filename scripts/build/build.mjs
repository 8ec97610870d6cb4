// Builds with esbuild, in about a second: `node scripts/build/build.mjs all <directory>` puts the modules of server/
// there, and the dashboard into its folder `dashboard`; `dashboard <directory>` builds only the page. Types are checked
// by `npm run typecheck`, not here.
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const server = join(root, 'server');
const page = join(server, 'dashboard');
const [part, directory] = process.argv.slice(2);

const keepModulesApart = {
  name: 'keep-modules-apart',
  setup({ onResolve }) {
    onResolve({ filter: /^\.\.?\// }, ({ kind, path }) => {
      return kind === 'entry-point' ? undefined : { path: path.replace(/\.ts$/, '.js'), external: true };
    });
  },
};

if (directory === undefined || !['all', 'dashboard'].includes(part)) {
  console.error('usage: node scripts/build/build.mjs all|dashboard <directory>');
  process.exit(2);
}
try {
  if (part === 'dashboard') await buildDashboard(directory);
  else await Promise.all([buildServer(directory), buildDashboard(join(directory, 'dashboard'))]);
} catch (error) {
  // esbuild has printed what is wrong and where.
  if (!('errors' in error)) throw error;
  process.exit(1);
}

/** One JavaScript module for each TypeScript module: worker threads and stack traces name files. */
async function buildServer(outdir) {
  const names = await readdir(server, { recursive: true });
  const entryPoints = names
    .filter((name) => name.endsWith('.ts') && !name.startsWith('dashboard'))
    .map((name) => join(server, name));
  await build({
    entryPoints,
    outdir,
    outbase: server,
    bundle: true,
    packages: 'external',
    platform: 'node',
    format: 'esm',
    target: 'node20',
    treeShaking: false,
    sourcemap: true,
    // The sources are there, in a clone and in the package.
    sourcesContent: false,
    plugins: [keepModulesApart],
  });
}

/** Hashed names that browsers keep for ever, and nothing inline that the content security policy would have to allow. */
async function buildDashboard(outdir) {
  await rm(outdir, { recursive: true, force: true });
  const { metafile } = await build({
    entryPoints: [join(page, 'src', 'main.tsx')],
    outdir: join(outdir, 'assets'),
    entryNames: '[name]-[hash]',
    assetNames: '[name]-[hash]',
    loader: { '.svg': 'file' },
    // As seen from the page, whose <base> the server sets.
    publicPath: './assets',
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    jsx: 'automatic',
    jsxImportSource: 'preact',
    metafile: true,
    absWorkingDir: root,
  });
  const html = await readFile(join(page, 'index.html'), 'utf8');
  await mkdir(outdir, { recursive: true });
  await writeFile(join(outdir, 'index.html'), withHashedNames(html, metafile.outputs));
}

/** The addresses of the source in index.html become those of the built files; the styles come with the script. */
function withHashedNames(html, outputs) {
  const address = (file) => `"./assets/${basename(file)}"`;
  for (const [file, { entryPoint, cssBundle, inputs }] of Object.entries(outputs)) {
    // The icon is a file that the script imports.
    const source = entryPoint ?? (file.endsWith('.svg') ? Object.keys(inputs)[0] : undefined);
    if (source === undefined) continue;
    const named = `"./${relative(page, join(root, source)).replaceAll('\\', '/')}"`;
    if (!html.includes(named)) throw new Error(`index.html does not name ${named}`);
    html = html.replace(named, address(file));
    if (cssBundle) html = html.replace('</head>', `  <link rel="stylesheet" href=${address(cssBundle)} />\n  </head>`);
  }
  return html;
}
