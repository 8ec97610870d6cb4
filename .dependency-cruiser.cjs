// The layers: main, cli, testing → daemon → demo → http | worker | maintenance → scheduler | schedules | stats → jobs →
// tenants | events → database → kernel. Imports point down only; nothing goes round in circles.

// A row may import from the rows below it, and a folder from itself.
const layers = [
  ['main', 'cli', 'testing'],
  ['daemon'],
  ['demo'],
  ['http', 'worker', 'maintenance'],
  ['scheduler', 'schedules', 'stats'],
  ['jobs'],
  ['tenants', 'events'],
  ['database'],
  ['kernel'],
];

// A folder, or the single file that stands for it while it is one.
const pathOf = (name) => `^server/${name}(/|\\.ts$)`;

const downOnly = layers.flatMap((row, level) =>
  row.map((name) => ({
    name: `${name}-imports-down-only`,
    severity: 'error',
    from: { path: pathOf(name) },
    to: {
      path: [...layers.slice(0, level).flat(), ...row.filter((other) => other !== name)].map(pathOf),
      // Types vanish at build time, but a type from above is still knowledge of what is above.
    },
  })),
);

module.exports = {
  forbidden: [
    ...downOnly.filter((rule) => rule.to.path.length > 0),
    { name: 'no-circles', severity: 'error', from: {}, to: { circular: true } },
    { name: 'no-tests-in-the-product', severity: 'error', from: { path: '^server' }, to: { path: '^(test|scripts)/' } },
    {
      name: 'no-development-packages-in-the-product',
      severity: 'error',
      from: { path: '^server' },
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
