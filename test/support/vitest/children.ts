// What the tests started ends with them, also when the run is killed: a process that lost its run exits, and kills its
// children when it exits. A run that ends by itself has none left, which leaks.ts checks.
import { ChildProcess } from 'node:child_process';

interface Spawning {
  spawn(options: object): unknown;
}

/** In each process of the run, once. */
export function endChildrenWithRun(): void {
  const known = globalThis as { leaseholdChildren?: Set<ChildProcess> };
  if (known.leaseholdChildren) return;
  const children = new Set<ChildProcess>();
  known.leaseholdChildren = children;
  const prototype = ChildProcess.prototype as unknown as Spawning;
  const { spawn } = prototype;
  prototype.spawn = function (this: ChildProcess, options: object) {
    const result = spawn.call(this, options);
    children.add(this);
    this.once('exit', () => children.delete(this));
    return result;
  };
  process.on('exit', () => {
    for (const child of children) end(child);
  });
  // The run's main process was killed.
  process.once('disconnect', () => process.exit(1));
}

function end(child: ChildProcess): void {
  // A database server takes its own processes along; one that is killed leaves them.
  child.kill(/postgres/.test(child.spawnfile) ? 'SIGQUIT' : 'SIGKILL');
}
