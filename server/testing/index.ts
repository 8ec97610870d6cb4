// The package `leasehold/testing`: runs a handler or a phase in memory, or a whole job on a real daemon.
export {
  type Engine,
  type EngineJob,
  type EngineOptions,
  type EngineQuestion,
  type EngineRequest,
  startEngine,
} from './engine.ts';
export { runHandler, runPhase } from './fake-run.ts';
export type { TestOptions, TestRun } from './test-run.ts';
