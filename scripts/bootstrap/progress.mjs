// Says what a long step of the bootstrap is doing: on a terminal one line that counts, elsewhere one line at its start and
// one at its end.

const everyMs = 250;

/** `count` returns how much is done, as text, while the work runs. */
export async function withProgress(title, work, count = () => '') {
  // Standard output belongs to the program that follows, and to `npm pack --json`.
  const out = process.stderr;
  const startedAt = performance.now();
  const elapsed = () => `${((performance.now() - startedAt) / 1000).toFixed(1)} s`;
  const show = () => out.write(`\r\x1b[K${title} … ${count()} ${elapsed()}`);
  if (!out.isTTY) out.write(`${title}\n`);
  const timer = out.isTTY ? setInterval(show, everyMs) : undefined;
  try {
    const result = await work();
    out.write(out.isTTY ? `\r\x1b[K${title}: ${elapsed()}\n` : `  done in ${elapsed()}\n`);
    return result;
  } catch (error) {
    if (out.isTTY) out.write('\n');
    throw error;
  } finally {
    clearInterval(timer);
  }
}
