// Checks the logs of a run of the fault harness: prints each violation with the line that shows it.
import { checkRun } from '../../test/faults/check/check-run.ts';
import { describeViolation } from '../../test/faults/check/violation.ts';

const [directory] = process.argv.slice(2);
if (directory === undefined) throw new Error('which directory? npm run test:faults -- --check DIRECTORY');
const violations = checkRun(directory);
for (const violation of violations) console.log(describeViolation(violation));
console.log(violations.length === 0 ? 'I1 to I12 hold' : `${violations.length} violations`);
process.exitCode = violations.length === 0 ? 0 : 1;
