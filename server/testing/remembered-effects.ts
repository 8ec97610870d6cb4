// Effects that write nowhere: what a handler reported, for a test to look at.
import { v7 as uuidv7 } from 'uuid';
import { type Effects, type LogLevel, overallProgress, type PhaseScope } from '../worker/attempt/effects.ts';
import { toStorable } from '../worker/attempt/storable.ts';
import type { ChildOptions } from '../worker/handlers/define-job.ts';
import { Fatal } from '../worker/handlers/handler-errors.ts';

export interface Remembered {
  /** Every report, not only those that a database would have seen. */
  progress: { percent: number; overall: number; message?: string | undefined; phase?: string | undefined }[];
  logs: { level: LogLevel; message: string; data?: Record<string, unknown> | undefined }[];
  tokensUsed: number;
  children: { id: string; type: string; payload: unknown; options: ChildOptions }[];
  checkpoint: unknown;
  /** How often the lease was asserted. */
  leaseAsserts: number;
}

export interface Limits {
  tokenLimit: number;
  resultLimitBytes: number;
  onOverspent(used: number): void;
}

export function remember(limits: Limits, tokensUsed: number): { effects: Effects; remembered: Remembered } {
  const children = new Map<string, { id: string }>();
  const remembered: Remembered = {
    progress: [],
    logs: [],
    tokensUsed,
    children: [],
    checkpoint: undefined,
    leaseAsserts: 0,
  };
  const effects: Effects = {
    progress(percent: number, message: string | undefined, phase: PhaseScope | undefined) {
      remembered.progress.push({ percent, overall: overallProgress(percent, phase), message, phase: phase?.name });
    },
    log: (level, message, data) => void remembered.logs.push({ level, message, data }),
    addUsage(tokens) {
      remembered.tokensUsed += tokens;
      if (limits.tokenLimit > 0 && remembered.tokensUsed > limits.tokenLimit) limits.onOverspent(remembered.tokensUsed);
    },
    async assertLease() {
      remembered.leaseAsserts += 1;
      return { validUntilMs: Number.POSITIVE_INFINITY };
    },
    async enqueue(key, type, payload, options) {
      const known = children.get(key);
      if (known !== undefined) return known;
      const child = { id: uuidv7() };
      children.set(key, child);
      remembered.children.push({ ...child, type, payload, options });
      return child;
    },
    async checkpoint(state) {
      const stored = toStorable(state, limits.resultLimitBytes, 'The checkpoint');
      if (!stored.ok) throw new Fatal(stored.error.message, { code: stored.error.code });
      remembered.checkpoint = stored.value;
    },
    async flush() {},
  };
  return { effects, remembered };
}
