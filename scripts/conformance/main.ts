// npm run conformance -- --url http://127.0.0.1:8080 --key lh_… -- node --import tsx my-worker.ts
// Certifies a remote worker against a running Leasehold. docs/remote-workers.md says what it must do.
import { Command } from 'commander';
import { allChecks, certify } from './certify.ts';

const program = new Command('conformance')
  .description('Certify a remote worker against a running Leasehold.')
  .requiredOption('--url <url>', 'address of the server')
  .requiredOption('--key <key>', 'API key with the scopes read, enqueue, control and worker')
  .option('--only <checks...>', `some of: ${allChecks.map((check) => check.name).join(', ')}`)
  .option('--durable', 'also play the checks of durable calls')
  .option('--parallel', 'play all checks at once')
  .argument('<command...>', 'what starts the worker; it must get SIGTERM itself')
  .parse();

const options = program.opts<{ url: string; key: string; only?: string[]; durable?: boolean; parallel?: boolean }>();
const verdicts = await certify({
  ...options,
  command: program.args,
  onVerdict: ({ name, promise, passed, detail }) => {
    process.stdout.write(`${passed ? 'ok  ' : 'FAIL'} ${name}: ${promise}\n${detail ? `     ${detail}\n` : ''}`);
  },
});
const failed = verdicts.filter((verdict) => !verdict.passed).length;
process.stdout.write(`${verdicts.length - failed} of ${verdicts.length} checks passed\n`);
process.exitCode = failed === 0 ? 0 : 1;
