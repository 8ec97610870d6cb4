// The garbage of an idle process is collected, and a busy one is left alone.
import { expect, test } from 'vitest';
import { IdleMemory } from '../../../server/daemon/idle-memory.ts';
import { eventually } from '../../support/eventually.ts';

function work(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end);
}

/** In a function of its own, so that nothing here refers to the object. */
const dropObject = () => new WeakRef({ text: 'dropped' });

const turn = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

test('an idle process collects what it no longer needs', async () => {
  const memory = new IdleMemory({ maxUsedBytes: Number.POSITIVE_INFINITY, maxUtilization: 1 });
  const dropped = dropObject();
  const kinds: string[] = [];
  await eventually(async () => {
    await turn(20);
    kinds.push(memory.collectIfIdle());
    expect(kinds).toContain('major');
    // Not the object itself, which a failed assertion would keep.
    expect(dropped.deref() === undefined).toBe(true);
  });
  // The first only prepares the others.
  expect(kinds.find((kind) => kind !== 'none')).toBe('minor');
});

test('a busy process, and one with a large heap, are left alone', async () => {
  const busy = new IdleMemory({ maxUsedBytes: Number.POSITIVE_INFINITY });
  expect(busy.collectIfIdle()).toBe('minor');
  for (let round = 0; round < 3; round++) {
    work(30);
    await turn(0);
    expect(busy.collectIfIdle()).toBe('none');
  }
  const large = new IdleMemory({ maxUsedBytes: 1 });
  expect(large.collectIfIdle()).toBe('minor');
  await turn(100);
  expect(large.collectIfIdle()).toBe('none');
});
