// The layers of server/, top to bottom. Imports point down only, and never in a circle. The rule is made from the
// tree: a folder or file of server/ that has no place in the table fails the check.
const { readdirSync } = require('node:fs');
const { join } = require('node:path');

// A row may import from the rows below it, and a folder from itself.
const layers = [
  ['main', 'index', 'cli', 'testing'],
  ['embed'],
  ['daemon'],
  ['demo'],
  // remote-worker runs on other machines: of what is below it loads the part of `durable` that needs no database.
  ['http', 'worker', 'maintenance', 'remote-worker'],
  ['explain', 'verify'],
  ['scheduler', 'schedules', 'stats', 'webhooks'],
  ['durable'],
  ['jobs'],
  ['daemon-registry'],
  ['tenants', 'events'],
  ['embedded-postgres'],
  ['database'],
  ['client'],
  ['kernel'],
  // The page in the browser: it talks to the rest over HTTP and imports nothing of it but the fields of forms.
  ['dashboard'],
  // The fields of a question's form, for the page and for the hosted form.
  ['forms'],
];

const placed = new Set(layers.flat());
const folders = readdirSync(join(__dirname, 'server')).map((name) => name.replace(/\.ts$/, ''));
const unplaced = folders.filter((name) => !placed.has(name));
if (unplaced.length > 0) throw new Error(`no layer in .dependency-cruiser.cjs for: ${unplaced.join(', ')}`);

const pathOf = (name) => `^server/${name}(/|\\.ts$)`;

const downOnly = layers.flatMap((row, level) =>
  row.map((name) => ({
    name: `${name}-imports-down-only`,
    comment: 'A type from a layer above counts too: it is knowledge of what is above.',
    severity: 'error',
    from: { path: pathOf(name) },
    to: { path: [...layers.slice(0, level).flat(), ...row.filter((other) => other !== name)].map(pathOf) },
  })),
);

module.exports = {
  forbidden: [
    ...downOnly.filter((rule) => rule.to.path.length > 0),
    {
      name: 'the-client-stands-alone',
      comment: 'It runs in browsers: types of the daemon are fine, code is not.',
      severity: 'error',
      from: { path: '^server/client/' },
      to: { pathNot: '^server/client/', dependencyTypesNot: ['type-only'] },
    },
    { name: 'no-circles', severity: 'error', from: {}, to: { circular: true } },
    { name: 'no-tests-in-the-product', severity: 'error', from: { path: '^server' }, to: { path: '^(test|scripts)/' } },
    {
      name: 'no-development-packages-in-the-product',
      severity: 'error',
      // The page is bundled when it is built.
      from: { path: '^server', pathNot: '^server/dashboard' },
      to: { dependencyTypes: ['npm-dev', 'npm-no-pkg', 'npm-unknown'] },
    },
    { name: 'nothing-missing', severity: 'error', from: {}, to: { couldNotResolve: true } },
  ],
  options: {
    tsConfig: { fileName: 'tsconfig.json' },
    tsPreCompilationDeps: true,
    doNotFollow: { path: 'node_modules' },
    enhancedResolveOptions: {
      exportsFields: ['exports'],
      conditionNames: ['import', 'require', 'node', 'default', 'types'],
    },
  },
};
