// The plots in the documentation are those of the kept results.
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
// @ts-expect-error a script without types
import { plots } from '../../../scripts/bench/daemons/plot.mjs';

const drawn: Record<string, string> = plots();

test.each(Object.keys(drawn))('docs/images/%s.svg shows the results in docs/performance', (name) => {
  const kept = readFileSync(new URL(`../../../docs/images/${name}.svg`, import.meta.url), 'utf8');
  expect(kept, 'run npm run bench:plot').toBe(drawn[name]);
});
