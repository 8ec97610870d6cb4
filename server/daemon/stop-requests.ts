// Who asks the process to stop: signals, and the end of the launcher (npm, npx and the shell between) that
// started it. Counts requests: the first one drains, the second one ends the grace.

export interface StopRequest {
  /** A signal, or `launcher gone`. */
  cause: string;
  count: number;
}

const signals = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const;
// One request may arrive twice: Ctrl-C reaches every process of the terminal's group, and npm forwards its own copy.
const duplicateMs = 1000;
const launcherCheckMs = 500;

export function onStopRequest(launcher: number | undefined, listener: (request: StopRequest) => void): void {
  let count = 0;
  let last: { cause: string; at: number } | undefined;
  const request = (cause: string) => {
    const at = performance.now();
    if (last?.cause === cause && at - last.at < duplicateMs) return;
    last = { cause, at };
    count += 1;
    listener({ cause, count });
  };
  for (const signal of signals) process.on(signal, request);
  if (launcher === undefined) return;
  const timer = setInterval(() => {
    if (process.ppid === launcher) return;
    clearInterval(timer);
    // A launcher that ends while the drain runs has passed its signal on; it does not ask for haste.
    if (count === 0) request('launcher gone');
  }, launcherCheckMs).unref();
}

/**
 * The process that started this one, if an npm script or npx did: they die of a signal without a word to us,
 * or are killed. Undefined for a daemon that was started directly, and for one in a process group of its own
 * (setsid, a job of an interactive shell): it may outlive its parent on purpose.
 */
export function findLauncher(env: NodeJS.ProcessEnv = process.env): number | undefined {
  // Left by scripts/bootstrap.mjs, which began before it installed and built.
  const remembered = Number(env.LEASEHOLD_LAUNCHER_PID);
  delete env.LEASEHOLD_LAUNCHER_PID;
  if (env.npm_lifecycle_event === undefined || leadsItsGroup()) return undefined;
  return remembered > 0 ? remembered : process.ppid;
}

function leadsItsGroup(): boolean {
  try {
    // A group has the number of the process that leads it.
    return process.kill(-process.pid, 0);
  } catch {
    return false;
  }
}
