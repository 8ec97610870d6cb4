// The package `leasehold/server`: Leasehold as a part of another program. Nothing here opens a connection, starts a
// timer or listens for a signal before `createLeasehold` and `start` are called.
export type { EventListener, LeaseholdEvent } from '../events/log/leasehold-event.ts';
export type { FinishedJob, RetentionHook } from '../jobs/model/job-values.ts';
export type {
  CallerTransaction,
  EnqueueOptions,
  EventReceipt,
  HostCaller,
  HostHandler,
  HostLogger,
  HostPool,
  JobHandle,
  JobItem,
  Leasehold,
  LeaseholdOptions,
  LeaseholdProblem,
  RouterOptions,
  Scope,
  SendEventOptions,
  StopOptions,
  TenantInfo,
  TenantOptions,
  Tenants,
  UniqueOptions,
} from './api.ts';
export { createLeasehold, isProblem } from './leasehold.ts';
export type { LeaseholdSettings } from './settings.ts';
