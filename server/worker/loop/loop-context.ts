// What the loops of a daemon share beside the workers' context: the slots they compete for, and the event loop's monitor.
import type { WorkerContext } from '../worker-context.ts';
import type { SendClaim } from './claimer.ts';
import type { EventLoopMonitor } from './event-loop-monitor.ts';
import type { Slots } from './slots.ts';

export interface LoopContext extends WorkerContext {
  slots: Slots;
  monitor?: EventLoopMonitor;
  sendClaim?: SendClaim;
}
