// Plays the checks and says which the worker passed.
import { type Check, checks } from './checks.ts';
import { durableChecks } from './durable-checks.ts';
import { CheckFailed, Stage, type StageOptions } from './stage.ts';

export interface CertifyOptions extends StageOptions {
  /** Names of the checks to play; all by default. */
  only?: readonly string[];
  /** The worker has durable calls: play their checks too. */
  durable?: boolean;
  /** All at once: faster, on a machine with cores to spare. */
  parallel?: boolean;
  onVerdict?: (verdict: Verdict) => void;
}

export interface Verdict {
  name: string;
  promise: string;
  passed: boolean;
  detail?: string;
}

export const allChecks: readonly Check[] = [...checks, ...durableChecks];

export async function certify(options: CertifyOptions): Promise<Verdict[]> {
  const { only, durable } = options;
  const wanted = only ? allChecks.filter((check) => only.includes(check.name)) : durable ? allChecks : checks;
  const play = async (check: Check) => {
    const verdict = await playOne(options, check);
    options.onVerdict?.(verdict);
    return verdict;
  };
  if (options.parallel) {
    // Every stage is cleared away before an error of one is told.
    const played = await Promise.allSettled(wanted.map(play));
    return played.map((result) => {
      if (result.status === 'rejected') throw result.reason;
      return result.value;
    });
  }
  const verdicts: Verdict[] = [];
  for (const check of wanted) verdicts.push(await play(check));
  return verdicts;
}

async function playOne(options: CertifyOptions, { name, promise, settings, run }: Check): Promise<Verdict> {
  const stage = await Stage.open(options, name, settings);
  try {
    await run(stage);
    return { name, promise, passed: true };
  } catch (error) {
    if (error instanceof CheckFailed) return { name, promise, passed: false, detail: error.message };
    throw error;
  } finally {
    await stage.close();
  }
}
