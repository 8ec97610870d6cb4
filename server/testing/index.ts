// The package `leasehold/testing`: runs a handler or a phase in memory, or a whole job on a real daemon.
export { type Engine, type EngineOptions, startEngine } from './engine.ts';
export { runHandler, runPhase, type TestOptions, type TestRun } from './fake-run.ts';
