// `npm run check`, what CI runs. Runs every step even after one has failed, and the tests last, because their count
// closes the output. Fails if any step failed. The tests run once, with coverage; `npm test` runs them without.
import { spawnSync } from 'node:child_process';

const steps = [
  'typecheck',
  'lint',
  'names',
  'sql',
  'unused',
  'duplicates',
  'layers',
  'docs:check',
  'lock:check',
  'migrations:check',
  'image:check',
  'test:coverage',
];
const failed = [];
for (const step of steps) {
  if (step === steps.at(-1) && failed.length > 0) console.error(`\nFailed before the tests: ${failed.join(', ')}`);
  console.log(`\n── ${step}`);
  const npm = process.env.npm_execpath;
  const { status } = npm?.endsWith('.js')
    ? spawnSync(process.execPath, [npm, 'run', '--silent', step], { stdio: 'inherit' })
    : spawnSync('npm', ['run', '--silent', step], { stdio: 'inherit', shell: process.platform === 'win32' });
  if (status !== 0) failed.push(step);
}
process.exitCode = failed.length > 0 ? 1 : 0;
