// The plots in the documentation are those of the kept results.
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

const { plots } = (await import(new URL('../../../scripts/bench/daemons/plot.mjs', import.meta.url).href)) as {
  plots(): Record<string, string>;
};
const drawn = plots();

test.each(Object.keys(drawn))('docs/images/%s.svg shows the results in docs/performance', (name) => {
  const kept = readFileSync(new URL(`../../../docs/images/${name}.svg`, import.meta.url), 'utf8');
  expect(kept, 'run npm run bench:plot').toBe(drawn[name]);
});
