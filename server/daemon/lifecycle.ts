// Where a daemon is between its start and its stop, for the parts that depend on it.
import type { ReadinessState } from '../http/resources/health.ts';

export class Lifecycle {
  state: 'new' | 'starting' | 'running' | 'stopping' | 'stopped' = 'new';
  isMigrated = false;
  #drainEndsAt = 0;

  get isDraining(): boolean {
    return this.state === 'stopping' || this.state === 'stopped';
  }

  beginDrain(graceMs: number): void {
    this.state = 'stopping';
    this.#drainEndsAt = performance.now() + graceMs;
  }

  readiness(running: number): ReadinessState {
    const isStarting = this.state === 'starting';
    const graceLeftMs = Math.max(0, this.#drainEndsAt - performance.now());
    return {
      migrated: this.isMigrated,
      draining: this.isDraining,
      ...(this.state === 'stopping' && { drain: { running, grace_left_ms: graceLeftMs } }),
      checks: { workers: { ok: !isStarting, ...(isStarting && { detail: 'starting' }) } },
    };
  }
}
