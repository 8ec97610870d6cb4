// The package `leasehold/testing`: for tests of jobs. A handler or a phase against a context that
// only remembers, or a whole job against a real engine.
export { type Engine, type EngineOptions, startEngine } from './engine.ts';
export { runHandler, runPhase, type TestOptions, type TestRun } from './fake-run.ts';
