// Like a process of a test run, with a child that would never end; says the child's pid to its parent.
import { spawn } from 'node:child_process';
import { endChildrenWithRun } from './children.ts';

endChildrenWithRun();
const child = spawn(process.execPath, ['-e', 'setInterval(() => {}, 60_000)'], { stdio: 'ignore' });
process.send?.(child.pid);
setInterval(() => {}, 60_000);
