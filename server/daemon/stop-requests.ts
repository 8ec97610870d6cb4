// Requests to stop the process: signals, and the exit of the launcher (npm, npx and the shell between) that started it. Counts requests: the first one drains, the second one ends the grace.

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
    // A launcher that exits during the drain has forwarded its signal: that is not a second request.
    if (count === 0) request('launcher gone');
  }, launcherCheckMs).unref();
}

/**
 * The process that started this one, if an npm script or npx did: a signal may end them before they
 * forward it. Undefined for a daemon that was started directly, and for one in a process group of its own
 * (setsid, a job of an interactive shell): it may outlive its parent on purpose.
 */
export function findLauncher(env: NodeJS.ProcessEnv = process.env): number | undefined {
  // Set by scripts/bootstrap.mjs, which starts before it installs and builds.
  const remembered = Number(env.LEASEHOLD_LAUNCHER_PID);
  delete env.LEASEHOLD_LAUNCHER_PID;
  if (env.npm_lifecycle_event === undefined || leadsItsGroup()) return undefined;
  return remembered > 0 ? remembered : process.ppid;
}

function leadsItsGroup(): boolean {
  try {
    // The id of a group is that of the process that leads it.
    return process.kill(-process.pid, 0);
  } catch {
    return false;
  }
}
