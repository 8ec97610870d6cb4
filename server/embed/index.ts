// The package `leasehold/server`: Leasehold as a part of another program. Nothing here opens a connection, starts a timer
// or listens for a signal before `createLeasehold` and `start` are called.
export type { AuthorizeRequest, HostCaller } from '../http/request/host-access.ts';
export type { Job } from '../jobs/model/job.ts';
export { ConfigError } from '../kernel/config.ts';
export { Problem, type ProblemCode } from '../kernel/errors.ts';
export type { Scope } from '../tenants/api-keys/key.ts';
export type { TenantSettings } from '../tenants/tenant.ts';
export type { CallerTransaction } from './caller-transaction.ts';
export type { EnqueueOptions, JobHandle, JobItem } from './enqueue-request.ts';
export type { HostLogger } from './host-logger.ts';
export { createLeasehold, type Leasehold, type RouterOptions, type StopOptions } from './leasehold.ts';
export type { LeaseholdOptions, LeaseholdSettings } from './options.ts';
