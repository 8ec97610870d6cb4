// The package `leasehold/server`: Leasehold as a part of another program. Nothing here opens a connection, starts a timer
// or listens for a signal before `createLeasehold` and `start` are called.
export type {
  CallerTransaction,
  EnqueueOptions,
  EventListener,
  FinishedJob,
  HostCaller,
  HostHandler,
  HostLogger,
  HostPool,
  JobHandle,
  JobItem,
  Leasehold,
  LeaseholdEvent,
  LeaseholdOptions,
  LeaseholdProblem,
  RetentionHook,
  RouterOptions,
  Scope,
  StopOptions,
  TenantInfo,
  TenantOptions,
  Tenants,
} from './api.ts';
export { createLeasehold, isProblem } from './leasehold.ts';
export type { LeaseholdSettings } from './settings.ts';
